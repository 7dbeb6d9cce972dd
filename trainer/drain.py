"""Unloading versions that nobody uses any more, without holding up the next step.

Those before the live one, but for the one that a gate may go back to, and those that were undone.

An engine that is told to unload a busy adapter waits for its requests and blocks every other
load, so a version is unloaded only once each live gateway has moved on and reports no request on
it. Until then it stays, which costs memory and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from gateway.engine.base import Engine
from gateway.errors import EngineError, StoreError
from gateway.records import PolicyKind, PolicyRef
from gateway.store.workers import Workers
from gateway.telemetry import get_logger
from trainer.config import PublishSettings
from trainer.ending import end

log = get_logger(__name__)


def idle(gateways: Iterable[Mapping[str, Any]], lineage_id: UUID, version: int, live: int) -> bool:
    """Whether no gateway has, or may yet start, a request on `version` (pure).

    `gateways` are their reports: `{"in_flight": {lineage: {version: n}}, "engines": [{"healthy",
    "serving": {lineage: version}, "trying": {lineage: version}}]}`, lineages in hex. Wherever
    one sends requests of the lineage, it must have moved to `live`, and off `version`.
    """
    lineage = lineage_id.hex
    return not any(
        _running(report, lineage, version)
        or any(v < live or v == version for v in _serving(report, lineage))
        for report in gateways
    )


def _running(report: Mapping[str, Any], lineage: str, version: int) -> int:
    return int(((report.get("in_flight") or {}).get(lineage) or {}).get(str(version), 0))


def _serving(report: Mapping[str, Any], lineage: str) -> Iterator[int]:
    """The versions that a gateway starts requests on; it starts none on an engine that is down."""
    for place in (report, *report.get("engines", ())):
        if not place.get("healthy", True):
            continue
        if (version := (place.get("serving") or {}).get(lineage)) is not None:
            yield int(version)
        if (version := (place.get("trying") or {}).get(lineage)) is not None:
            yield int(version)


class Drain:
    """One background task a lineage; a newer version takes over from it."""

    def __init__(
        self,
        lineage_id: UUID,
        engines: Sequence[Engine],
        workers: Workers,
        settings: PublishSettings,
    ) -> None:
        self._lineage_id, self._engines = lineage_id, engines
        self._workers, self._settings = workers, settings
        self._task: asyncio.Task[None] | None = None
        self._keep: frozenset[int] = frozenset()
        self._undone: frozenset[int] = frozenset()

    async def start(
        self, live: int, *, keep: Collection[int] = (), undone: Collection[int] = ()
    ) -> None:
        """Begin to unload every version below `live` but those to `keep`, and those `undone`."""
        await self.close()
        self._keep, self._undone = frozenset(keep), frozenset(undone)
        self._task = asyncio.create_task(self._run(live), name=f"drain of v{live}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    async def _run(self, live: int) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                # A gateway takes a moment to hear of the new version, and to report that it has.
                await asyncio.sleep(self._settings.drain_poll_s)
                while not await self._pass(live):  # noqa: ASYNC110 - heartbeats ring no bell
                    await asyncio.sleep(self._settings.drain_poll_s)
        except TimeoutError:
            log.warning("drain_timed_out", lineage=self._lineage_id.hex, policy_version=live)

    async def _pass(self, live: int) -> bool:
        """Unload what is idle; whether nothing of it is left on any engine."""
        try:
            alive = await self._workers.alive("gateway", self._settings.heartbeat_s)
        except StoreError as error:
            log.warning("drain_waits", error=error.message)
            return False
        reports = [worker.detail for worker in alive]
        done = True
        for engine in self._engines:
            try:
                async with asyncio.timeout(self._settings.load_timeout_s):
                    for version in _versions((await engine.status()).adapters, self._lineage_id):
                        if not self._goes(version, live):
                            continue
                        if not idle(reports, self._lineage_id, version, live):
                            done = False
                            continue
                        await engine.unload(_ref(self._lineage_id, version))
                        log.info("unloaded", engine=engine.name, policy_version=version)
            except (EngineError, TimeoutError) as error:
                # A dead engine has nothing loaded; what a slow one keeps goes with the next swap.
                log.warning("drain_skips", engine=engine.name, error=str(error))
        return done

    def _goes(self, version: int, live: int) -> bool:
        return version in self._undone or (version < live and version not in self._keep)


def _ref(lineage_id: UUID, version: int) -> PolicyRef:
    return PolicyRef(lineage_id=lineage_id, version=version, kind=PolicyKind.LORA)


def _versions(adapters: Iterable[str], lineage_id: UUID) -> list[int]:
    """The versions of a lineage among adapter names."""
    prefix = f"{lineage_id.hex}-v"
    return sorted(
        int(name.removeprefix(prefix))
        for name in adapters
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    )
