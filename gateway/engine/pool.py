"""Which engine answers a request, with which version, and what happens when one fails.

One task an engine follows the live versions, so that a dead engine delays no other. A session
stays on one engine (rendezvous hashing), whose prefix cache knows it, and with a canary or without.
New requests keep off an engine whose whole weights are being replaced, and wait where there is no
other. They keep off one that an operator has drained, and are refused where there is no other.
"""

from __future__ import annotations

import asyncio
import math
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
from gateway.engine.loading import reading_s
from gateway.engine.member import Member
from gateway.engine.movers import Alone, Movers
from gateway.engine.rendezvous import any_key, in_share, weight
from gateway.engine.stream import Request, Stream
from gateway.engine.text_pool import TextPool
from gateway.errors import EngineError, EngineUnavailable, NextstateError
from gateway.records import PolicyKind, PolicyRef, Served
from gateway.telemetry import get_logger

__all__ = ["EnginePool", "Live", "Stream"]

log = get_logger(__name__)

#: For how long new requests wait for engines whose weights are being replaced, beside what reading
#: these takes. Then all are sent to one all the same: that holds them, too, or goes on while
#: Postgres cannot say so.
_LONGEST_MOVE_S = 60.0

_NOT_LOADED = "has not loaded the live version"

#: What is to be served of every lineage.
Live = Callable[[], Awaitable[Mapping[UUID, Served]]]


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
        movers: Movers | None = None,
        retries: int = 2,
        poll_s: float = 2.0,
        live_timeout_s: float = 10.0,
        patience_s: float = 5.0,
    ) -> None:
        self._movers = movers or Alone()
        self._members = [Member(engine, movers=self._movers, now=self._look) for engine in engines]
        #: Names of engines whose weights are being replaced.
        self._moving: frozenset[str] = frozenset()
        #: Since when it has been these.
        self._moving_since = -math.inf
        #: How long that may take.
        self._longest_move_s = _LONGEST_MOVE_S
        self.texts = texts if texts is not None else TextPool(())
        self._live = live
        self._retries = retries
        self._poll_s, self._live_timeout_s, self._patience_s = poll_s, live_timeout_s, patience_s
        self._wanted: dict[UUID, Served] = {}
        self._poked = asyncio.Event()
        self._changed = asyncio.Condition()
        #: By lineage, version and the name of an engine.
        self._in_flight: Counter[tuple[UUID, int, str]] = Counter()

    @property
    def engines(self) -> list[Engine]:
        return [member.engine for member in self._members]

    @property
    def ready(self) -> bool:
        """Whether some engine answers that is not drained."""
        return any(m.healthy and not m.draining for m in self._members) or self.texts.ready

    def text_only(self, lineage_id: UUID) -> bool:
        """Whether only an engine without token ids can serve a lineage now.

        Such engines stand in while no other serves, or is about to; they are never mixed in.
        """
        return self.texts.ready and not (
            self._serves(lineage_id) or self._may_serve_soon(lineage_id)
        )

    def context_length(self, configured: int) -> int:
        """The least of `configured` and those that the engines have told so far."""
        least = configured
        for member in self._members:
            if member.status is not None and member.status.context_length is not None:
                least = min(least, member.status.context_length)
        return least

    @property
    def kept_most(self) -> int:
        """To how many ids sampling may be cut, so that some engine still tells which they are."""
        most = 0
        for member in self._members:
            if member.status is not None and member.status.kept_most > most:
                most = member.status.kept_most
        return most

    def describe(self) -> list[dict[str, Any]]:
        """Each engine, with the `requests` that run there now."""
        requests: Counter[str] = Counter()
        for (_, _, name), count in self._in_flight.items():
            requests[name] += count
        members = (one.describe() | {"requests": requests[one.name]} for one in self._members)
        return [*members, *self.texts.describe()]

    def drain(self, engines: Collection[str]) -> None:
        """Send no new request to engines of these names, and again to all others."""
        for member in self._members:
            member.drain(member.name in engines)
        self.texts.drain(engines)

    def in_flight(self) -> dict[str, dict[int, int]]:
        """Requests now running, by lineage (hex) and version. A version in use is not unloaded."""
        counts: dict[str, dict[int, int]] = {}
        for (lineage_id, version, _), count in self._in_flight.items():
            if count:
                versions = counts.setdefault(lineage_id.hex, {})
                versions[version] = versions.get(version, 0) + count
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

    async def _look(self) -> Mapping[UUID, Served]:
        """What is live at this moment; what was last known while the store is away."""
        self.poke()
        try:
            async with asyncio.timeout(self._live_timeout_s):
                return await self._live()
        except (NextstateError, TimeoutError):
            return self._wanted

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._live_timeout_s):
                wanted = dict(await self._live())
                moving = await self._under_way(wanted)
        except (NextstateError, TimeoutError) as error:
            # What was live goes on serving while the store is away.
            log.warning("live_versions_unknown", error=str(error))
            return
        if moving != self._moving:
            self._moving_since = asyncio.get_running_loop().time()
            self._longest_move_s = _LONGEST_MOVE_S + await _reading_s(wanted.values())
        if wanted != self._wanted or moving != self._moving:
            self._wanted, self._moving = wanted, moving
            for member in self._members:
                member.wake.set()

    async def _under_way(self, wanted: Mapping[UUID, Served]) -> frozenset[str]:
        if not any(served.live.kind is PolicyKind.FULL for served in wanted.values()):
            return frozenset()
        return await self._movers.under_way([member.name for member in self._members])

    async def _follow(self, member: Member) -> None:
        while True:
            member.wake.clear()
            await member.sync(self._wanted, self._moving)
            async with self._changed:
                self._changed.notify_all()
            await _wait(member.wake, self._poll_s)

    # Choosing

    def choose(
        self, lineage_id: UUID, session_key: str, exclude: Collection[str] = ()
    ) -> tuple[Engine, PolicyRef]:
        """An engine that serves the lineage, and the version that it serves.

        A canary where the session is in its share and some engine has it. Else the live version
        where some engine has that, else the newest that one has. `exclude` are names of engines.
        Raises EngineUnavailable where there is none.
        """
        chosen = self._chosen(lineage_id, session_key, exclude)
        if chosen is None:
            raise EngineUnavailable(self._why_none(), engine="pool")
        return chosen

    def _chosen(
        self, lineage_id: UUID, session_key: str, exclude: Collection[str] = ()
    ) -> tuple[Engine, PolicyRef] | None:
        """What `choose` gives, None where there is none."""
        key = session_key or any_key()
        served = self._wanted.get(lineage_id)
        best: list[tuple[Member, PolicyRef]] = []
        if served is not None and served.canary is not None:
            best = self._canaries(lineage_id, served, served.canary, key, exclude)
        best = best or self._ready(lineage_id, served, exclude)
        if not best:
            return None
        if len(best) == 1:
            member, policy = best[0]
        else:
            member, policy = max(best, key=lambda pair: weight(pair[0].name, key))
        return member.engine, policy

    def _canaries(
        self,
        lineage_id: UUID,
        served: Served,
        canary: PolicyRef,
        key: str,
        exclude: Collection[str],
    ) -> list[tuple[Member, PolicyRef]]:
        if not in_share(served.share, f"{lineage_id.hex}-v{canary.version}", key):
            return []
        return [
            (member, canary)
            for member in self._members
            if member.healthy
            and not member.draining
            and member.trying.get(lineage_id) == canary
            and member.name not in exclude
        ]

    def _ready(
        self, lineage_id: UUID, served: Served | None, exclude: Collection[str]
    ) -> list[tuple[Member, PolicyRef]]:
        ready: list[tuple[Member, PolicyRef]] = []
        for member in self._members:
            policy = member.serving.get(lineage_id)
            if (
                policy is not None
                and member.healthy
                and not member.draining
                and member.name not in exclude
            ):
                ready.append((member, policy))
        if len(ready) < 2:
            return ready
        # Where all of them are being moved, a request that does not wait is held by its engine.
        ready = [pair for pair in ready if pair[0].name not in self._moving] or ready
        best = [pair for pair in ready if served is not None and pair[1] == served.live]
        if best:
            return best
        # A version that was undone serves only where nothing else can.
        undone = served.undone if served is not None else frozenset()
        place = max((policy.version not in undone, policy.version) for _, policy in ready)
        return [pair for pair in ready if (pair[1].version not in undone, pair[1].version) == place]

    def _why_none(self) -> str:
        if not self._members:
            return "no engine is configured"
        states = "; ".join(
            f"{one.name}: {'is draining' if one.draining else one.error or _NOT_LOADED}"
            for one in self._members
        )
        return f"no engine can serve this now ({states})"

    @asynccontextmanager
    async def lease(
        self, lineage_id: UUID, session_key: str, exclude: Collection[str] = ()
    ) -> AsyncIterator[tuple[Engine, PolicyRef]]:
        """`choose`, with the version counted as in use until the block ends."""
        engine, policy = self.choose(lineage_id, session_key, exclude)
        release = self.hold(policy, engine.name)
        try:
            yield engine, policy
        finally:
            release()

    def hold(self, policy: PolicyRef, engine: str) -> Callable[[], None]:
        """Count a use of a version at an engine; the function returned ends it, once."""
        key, held = (policy.lineage_id, policy.version, engine), [True]
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
            chosen = None if self._moving else self._chosen(lineage_id, session_key)
            return chosen or await self._choose_soon(lineage_id, session_key)
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
        if self._all_moving(lineage_id):
            left_s = self._moving_since + self._longest_move_s - asyncio.get_running_loop().time()
            await self._until(lambda: not self._all_moving(lineage_id), max(0.0, left_s))
        try:
            return self.choose(lineage_id, session_key)
        except EngineUnavailable:
            if not self._may_serve_soon(lineage_id):
                raise
        self.poke()
        await self._until(lambda: self._serves(lineage_id) or not self._may_serve_soon(lineage_id))
        return self.choose(lineage_id, session_key)

    def _serves(self, lineage_id: UUID) -> bool:
        return any(m.healthy and not m.draining and lineage_id in m.serving for m in self._members)

    def _all_moving(self, lineage_id: UUID) -> bool:
        """Whether whole weights are being replaced at every engine that serves a lineage."""
        if not self._moving:
            return False
        able = [
            m for m in self._members if m.healthy and not m.draining and lineage_id in m.serving
        ]
        return bool(able) and all(member.name in self._moving for member in able)

    def _may_serve_soon(self, lineage_id: UUID) -> bool:
        served = self._wanted.get(lineage_id)
        live = served.live if served is not None else None
        return any(not one.draining and one.may_serve_soon(live) for one in self._members)

    async def _looked_at(self, names: Collection[str]) -> None:
        """Wait until the engines of these names have been looked at anew."""
        due = {member: member.begun + 1 for member in self._members if member.name in names}
        for member in due:
            member.wake.set()
        await self._until(lambda: any(member.ended >= turn for member, turn in due.items()))

    async def _until(self, condition: Callable[[], bool], patience_s: float | None = None) -> None:
        with suppress(TimeoutError):
            wait_s = self._patience_s if patience_s is None else patience_s
            async with asyncio.timeout(wait_s), self._changed:
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


async def _reading_s(wanted: Collection[Served]) -> float:
    """What reading the largest of the whole weights takes that may come or go back now."""
    versions = (policy for served in wanted for policy in (served.live, served.coming))
    whole = [one for one in versions if one is not None and one.kind is PolicyKind.FULL]
    return max([await asyncio.to_thread(reading_s, policy) for policy in whole], default=0.0)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
