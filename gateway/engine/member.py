"""One engine as the pool sees it: whether it answers, and which version of each lineage it serves.

A version serves here from the moment it is loaded until another is live and loaded. An engine that
has lost a version, because it was restarted, does not serve that lineage until the live version is
back. A canary is loaded beside the live version, and nothing waits for it.

An engine that says that it takes no adapters is given none, and serves no lineage of them.

Whole weights take the place of those before them. While somebody replaces them nothing is said of
the engine; afterwards it serves what it reports where that is live, or is coming and was proved
here, and is brought to the live version where it is not.

An engine that drains is looked at and brought to the live version like any other, so that it may
serve from the moment it is resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from gateway.engine.base import Engine, EngineStatus
from gateway.engine.chunks import reports
from gateway.engine.health import Health
from gateway.engine.movers import Alone, Movers
from gateway.errors import EngineError
from gateway.records import PolicyKind, PolicyRef, Served
from gateway.telemetry import get_logger

log = get_logger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0
#: Asked of the engine at each look: one that was started anew may take them.
NO_ADAPTERS = "it takes no adapters: start SGLang with --enable-lora"


class _Failure:
    """A version that could not be loaded, and when to try again: later each time."""

    def __init__(self, reason: str, before: _Failure | None, now: float) -> None:
        self.reason = reason
        self.wait_s: float = min(before.wait_s * 2, _LAST_RETRY_S) if before else _FIRST_RETRY_S
        self.retry_at = now + self.wait_s


class Member(Health):
    """`sync` is called by one task; everything else only reads, or sets `wake`."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
        movers: Movers | None = None,
        now: Callable[[], Awaitable[Mapping[UUID, Served]]] | None = None,
    ) -> None:
        """`now` tells what is live at this moment, whatever `sync` was told."""
        super().__init__(engine)
        self.engine = engine
        self._movers = movers or Alone()
        self._now = now
        self.serving: dict[UUID, PolicyRef] = {}
        self.trying: dict[UUID, PolicyRef] = {}
        self.begun = self.ended = 0
        self._clock = clock
        self._failures: dict[PolicyRef, _Failure] = {}
        self._free_at = -math.inf

    def may_serve_soon(self, policy: PolicyRef | None) -> bool:
        """Whether a version may be on its way: not where the engine is down or refused it."""
        return not self.ended or (self.healthy and policy not in self._failures)

    async def sync(
        self, wanted: Mapping[UUID, Served], moving: Collection[str] = frozenset()
    ) -> None:
        """Look at the engine, bring in what is wanted and not there, and move over to it.

        Engines in `moving` are at having their weights replaced by somebody.
        """
        self.begun = turn = self.begun + 1
        status = await self.look()
        if status is not None and self.name not in moving:
            if status.paused and any(one.live.kind is PolicyKind.FULL for one in wanted.values()):
                await self._freed()
            canaries = {key: one.canary for key, one in wanted.items() if one.canary is not None}
            self._fence(status, wanted)
            known = {*(one.live for one in wanted.values()), *canaries.values()}
            self._failures = {p: f for p, f in self._failures.items() if p in known}
            self.serving = {key: p for key, p in self.serving.items() if key in wanted}
            self.trying = {key: p for key, p in self.trying.items() if canaries.get(key) == p}
            for served in wanted.values():
                self._adopt(served, status)
                await self._bring(self._due(served, status), status, self.serving)
            for canary in canaries.values():
                await self._bring(canary, status, self.trying)
        self.ended = turn

    async def _freed(self) -> None:
        """Have an engine go on that whoever replaced its weights has left paused.

        One that is not ready for another reason goes on as it did.
        """
        if self._clock() < self._free_at:
            return
        self._free_at = self._clock() + _LAST_RETRY_S
        async with self._movers.turn(self.name) as mine:
            if not mine:
                self._free_at = -math.inf
                return
            try:
                await self.engine.resume()
            except EngineError as error:
                log.warning("engine_not_mended", engine=self.name, error=error.message)
            else:
                log.warning("engine_freed", engine=self.name)

    def _due(self, served: Served, status: EngineStatus) -> PolicyRef:
        """The version that the engine is to serve: what is coming only where it has it already."""
        coming = served.coming
        if coming is not None and self.name in served.proved and _has(status, coming):
            return coming
        return served.live

    def _fence(self, status: EngineStatus, wanted: Mapping[UUID, Served]) -> None:
        """Stop serving what the engine no longer has."""
        for versions in (self.serving, self.trying):
            for lineage_id, policy in list(versions.items()):
                served = wanted.get(lineage_id)
                if served is not None and policy.kind is PolicyKind.FULL:
                    # Another that it is to serve may have taken its place.
                    policy = self._due(served, status)  # noqa: PLW2901
                if not _has(status, policy):
                    log.warning("version_lost", engine=self.name, policy_version=policy.version)
                    del versions[lineage_id]

    def _adopt(self, served: Served, status: EngineStatus) -> None:
        """Serve the newest earlier version that is there, until the live one is."""
        live = served.live
        if live.lineage_id in self.serving or live.kind is not PolicyKind.LORA:
            return
        prefix = f"{live.lineage_id.hex}-v"
        earlier = [
            int(number)
            for name in status.adapters
            if name.startswith(prefix)
            and (number := name.removeprefix(prefix)).isdecimal()
            and int(number) < live.version
            and int(number) not in served.undone
        ]
        if earlier:
            self.serving[live.lineage_id] = PolicyRef(
                lineage_id=live.lineage_id, version=max(earlier), kind=PolicyKind.LORA
            )

    async def _bring(
        self, policy: PolicyRef, status: EngineStatus, versions: dict[UUID, PolicyRef]
    ) -> None:
        before = versions.get(policy.lineage_id)
        if before == policy:
            return
        if policy.kind is PolicyKind.LORA and not status.supports_lora:
            self._cannot(policy)
            return
        load_ms = None
        if not _has(status, policy):
            failure = self._failures.get(policy)
            if failure is not None and failure.reason == NO_ADAPTERS:
                failure = None
            if failure is not None and self._clock() < failure.retry_at:
                return
            try:
                load_ms = await self._load(policy)
            except EngineError as error:
                self._failures[policy] = failed = _Failure(error.message, failure, self._clock())
                log.warning(
                    "version_load_failed",
                    engine=self.name,
                    policy_version=policy.version,
                    error=error.message,
                    retry_s=failed.wait_s,
                )
                return
            if load_ms is None:
                return
        self._failures.pop(policy, None)
        versions[policy.lineage_id] = policy
        log.info(
            "version_serving" if versions is self.serving else "canary_serving",
            engine=self.name,
            lineage=policy.lineage_id.hex,
            policy_version=policy.version,
            before=before.version if before else None,
            load_ms=load_ms,
        )

    def _cannot(self, policy: PolicyRef) -> None:
        """Keep a version from an engine that takes no adapters, and say so once."""
        failure = self._failures.get(policy)
        if failure is None or failure.reason != NO_ADAPTERS:
            self._failures[policy] = _Failure(NO_ADAPTERS, None, self._clock())
            log.warning("engine_without_adapters", engine=self.name, policy_version=policy.version)

    async def _load(self, policy: PolicyRef) -> float | None:
        """The milliseconds; None where whole weights are somebody else's to replace, or were."""
        if policy.kind is not PolicyKind.FULL:
            return await self.engine.load(policy)
        async with self._movers.turn(self.name) as mine:
            if not mine or await self._overtaken(policy):
                return None
            return await self.engine.load(policy)

    async def _overtaken(self, policy: PolicyRef) -> bool:
        """Whether another version is due by now: a swap may have ended since one looked."""
        if self._now is None:
            return False
        served = (await self._now()).get(policy.lineage_id)
        return served is None or self._due(served, await self.engine.status()) != policy

    def describe(self) -> dict[str, Any]:
        """For people: what it serves, and why not."""
        status = self.status
        return {
            "name": self.name,
            "healthy": self.healthy,
            "draining": self.draining,
            "error": self.error,
            "model": status.model if status else None,
            "running": status.running if status else None,
            "queued": status.queued if status else None,
            "serving": {key.hex: policy.version for key, policy in self.serving.items()},
            "trying": {key.hex: policy.version for key, policy in self.trying.items()},
            "failing": {
                f"{policy.lineage_id.hex}-v{policy.version}": failure.reason
                for policy, failure in self._failures.items()
            },
        }


def _has(status: EngineStatus, policy: PolicyRef) -> bool:
    if policy.kind is PolicyKind.LORA:
        return policy.adapter in status.adapters
    if policy.kind is PolicyKind.FULL:
        return reports(status.weight_version, policy)
    return True
