"""Which engine answers a request, with which version, and what happens when one fails.

One task an engine follows the live versions, so that a dead engine delays no other. A session
stays on one engine (rendezvous hashing), whose prefix cache knows it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from gateway.engine.base import Engine
from gateway.engine.member import Member
from gateway.engine.rendezvous import any_key, weight
from gateway.engine.stream import Request, Stream
from gateway.engine.text_pool import TextPool
from gateway.errors import EngineError, EngineUnavailable, NextstateError
from gateway.records import PolicyRef
from gateway.telemetry import get_logger

__all__ = ["EnginePool", "Live", "Stream"]

log = get_logger(__name__)

#: The live policy of every lineage.
Live = Callable[[], Awaitable[Mapping[UUID, PolicyRef]]]


class EnginePool:
    """`follow` runs beside the server; `choose`, `lease` and `generate` serve its requests.

    `patience_s` bounds how long a request waits for a version that an engine is loading.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        live: Live,
        *,
        texts: TextPool | None = None,
        retries: int = 2,
        poll_s: float = 2.0,
        live_timeout_s: float = 10.0,
        patience_s: float = 5.0,
    ) -> None:
        self._members = [Member(engine) for engine in engines]
        self.texts = texts if texts is not None else TextPool(())
        self._live = live
        self._retries = retries
        self._poll_s, self._live_timeout_s, self._patience_s = poll_s, live_timeout_s, patience_s
        self._wanted: dict[UUID, PolicyRef] = {}
        self._poked = asyncio.Event()
        self._changed = asyncio.Condition()
        self._in_flight: Counter[tuple[UUID, int]] = Counter()

    @property
    def engines(self) -> list[Engine]:
        return [member.engine for member in self._members]

    @property
    def ready(self) -> bool:
        """Whether some engine answers."""
        return any(member.healthy for member in self._members) or self.texts.ready

    def text_only(self, lineage_id: UUID) -> bool:
        """Whether only an engine without token ids can serve a lineage now.

        Such engines stand in while no other serves, or is about to; they are never mixed in.
        """
        return self.texts.ready and not (
            self._serves(lineage_id) or self._may_serve_soon(lineage_id)
        )

    def context_length(self, configured: int) -> int:
        """The least of `configured` and those that the engines have told so far."""
        told = (member.status.context_length for member in self._members if member.status)
        return min([configured, *(length for length in told if length is not None)])

    def describe(self) -> list[dict[str, Any]]:
        return [*(member.describe() for member in self._members), *self.texts.describe()]

    def in_flight(self) -> dict[str, dict[int, int]]:
        """Requests now running, by lineage (hex) and version. A version in use is not unloaded."""
        counts: dict[str, dict[int, int]] = {}
        for (lineage_id, version), count in self._in_flight.items():
            if count:
                counts.setdefault(lineage_id.hex, {})[version] = count
        return counts

    # Following

    async def follow(self) -> None:
        """Keep every engine at the live versions, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_live())
            group.create_task(self.texts.follow())
            for member in self._members:
                group.create_task(self._follow(member))

    def poke(self) -> None:
        """A live version may have changed: look now."""
        self._poked.set()

    async def _follow_live(self) -> None:
        while True:
            self._poked.clear()
            await self._refresh()
            await _wait(self._poked, self._poll_s)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._live_timeout_s):
                wanted = dict(await self._live())
        except (NextstateError, TimeoutError) as error:
            # What was live goes on serving while the store is away.
            log.warning("live_versions_unknown", error=str(error))
            return
        if wanted != self._wanted:
            self._wanted = wanted
            for member in self._members:
                member.wake.set()

    async def _follow(self, member: Member) -> None:
        while True:
            member.wake.clear()
            await member.sync(self._wanted)
            async with self._changed:
                self._changed.notify_all()
            await _wait(member.wake, self._poll_s)

    # Choosing

    def choose(
        self, lineage_id: UUID, session_key: str, exclude: Collection[str] = ()
    ) -> tuple[Engine, PolicyRef]:
        """An engine that serves the lineage, and the version that it serves.

        The live version where some engine has it, else the newest that one has. `exclude` are
        names of engines. Raises EngineUnavailable where there is none.
        """
        ready = [
            (member, member.serving[lineage_id])
            for member in self._members
            if member.healthy and lineage_id in member.serving and member.name not in exclude
        ]
        if not ready:
            raise EngineUnavailable(self._why_none(), engine="pool")
        live = self._wanted.get(lineage_id)
        best = [pair for pair in ready if pair[1] == live]
        if not best:
            newest = max(policy.version for _, policy in ready)
            best = [pair for pair in ready if pair[1].version == newest]
        key = session_key or any_key()
        member, policy = max(best, key=lambda pair: weight(pair[0].name, key))
        return member.engine, policy

    def _why_none(self) -> str:
        if not self._members:
            return "no engine is configured"
        states = "; ".join(
            f"{member.name}: {member.error or 'has not loaded the live version'}"
            for member in self._members
        )
        return f"no engine can serve this now ({states})"

    @asynccontextmanager
    async def lease(
        self, lineage_id: UUID, session_key: str, exclude: Collection[str] = ()
    ) -> AsyncIterator[tuple[Engine, PolicyRef]]:
        """`choose`, with the version counted as in use until the block ends."""
        engine, policy = self.choose(lineage_id, session_key, exclude)
        release = self.hold(policy)
        try:
            yield engine, policy
        finally:
            release()

    def hold(self, policy: PolicyRef) -> Callable[[], None]:
        """Count a use of a version; the function returned ends it, once."""
        key, held = (policy.lineage_id, policy.version), [True]
        self._in_flight[key] += 1

        def release() -> None:
            if held:
                held.clear()
                self._in_flight[key] -= 1

        return release

    # Serving

    def generate(self, request: Request, lineage_id: UUID, session_key: str) -> Stream:
        """A generation that starts when it is iterated over; see `Stream`."""
        return Stream(self, request, lineage_id, session_key, retries=self._retries)

    async def next_engine(
        self,
        lineage_id: UUID,
        session_key: str,
        failed: Collection[str] = (),
        last: EngineError | None = None,
    ) -> tuple[Engine, PolicyRef]:
        """The engine for the next attempt, after `failed` ones of which `last` was the error.

        Waits a little for a version that is being loaded. Raises `last` where nothing is left.
        """
        if last is None:
            return await self._choose_soon(lineage_id, session_key)
        with suppress(EngineUnavailable):
            return self.choose(lineage_id, session_key, failed)
        if not isinstance(last, EngineUnavailable):
            raise last
        await self._looked_at(failed)
        try:
            return await self._choose_soon(lineage_id, session_key)
        except EngineUnavailable:
            raise last from None

    async def _choose_soon(self, lineage_id: UUID, session_key: str) -> tuple[Engine, PolicyRef]:
        """`choose`, waiting a little where an engine that answers is still loading."""
        try:
            return self.choose(lineage_id, session_key)
        except EngineUnavailable:
            if not self._may_serve_soon(lineage_id):
                raise
        self.poke()
        await self._until(lambda: self._serves(lineage_id) or not self._may_serve_soon(lineage_id))
        return self.choose(lineage_id, session_key)

    def _serves(self, lineage_id: UUID) -> bool:
        return any(m.healthy and lineage_id in m.serving for m in self._members)

    def _may_serve_soon(self, lineage_id: UUID) -> bool:
        live = self._wanted.get(lineage_id)
        return any(member.may_serve_soon(live) for member in self._members)

    async def _looked_at(self, names: Collection[str]) -> None:
        """Wait until the engines of these names have been looked at anew."""
        due = {member: member.begun + 1 for member in self._members if member.name in names}
        for member in due:
            member.wake.set()
        await self._until(lambda: any(member.ended >= turn for member, turn in due.items()))

    async def _until(self, condition: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s), self._changed:
                await self._changed.wait_for(condition)

    def doubt(self, engine: Engine) -> None:
        """A request failed there: look at it now, rather than at the next poll."""
        for member in self._members:
            if member.engine is engine:
                member.wake.set()

    async def close(self) -> None:
        """Close every engine's client. Cancel `follow` first."""
        await asyncio.gather(
            self.texts.close(), *(member.engine.close() for member in self._members)
        )


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
