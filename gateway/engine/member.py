"""One engine as the pool sees it: whether it answers, and which version of each lineage it serves.

A version serves here from the moment it is loaded until a later one is. An engine that has lost a
version, because it was restarted, does not serve that lineage until the live version is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from gateway.engine.base import Engine, EngineStatus
from gateway.engine.chunks import weight_version
from gateway.engine.health import Health
from gateway.errors import EngineError
from gateway.records import PolicyKind, PolicyRef
from gateway.telemetry import get_logger

log = get_logger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0


class _Failure:
    """A version that could not be loaded, and when to try again: later each time."""

    def __init__(self, reason: str, before: _Failure | None, now: float) -> None:
        self.reason = reason
        self.wait_s: float = min(before.wait_s * 2, _LAST_RETRY_S) if before else _FIRST_RETRY_S
        self.retry_at = now + self.wait_s


class Member(Health):
    """`sync` is called by one task; everything else only reads, or sets `wake`."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(engine)
        self.engine = engine
        self.serving: dict[UUID, PolicyRef] = {}
        self.begun = self.ended = 0
        self._clock = clock
        self._failures: dict[PolicyRef, _Failure] = {}

    def may_serve_soon(self, policy: PolicyRef | None) -> bool:
        """Whether a version may be on its way: not where the engine is down or refused it."""
        return not self.ended or (self.healthy and policy not in self._failures)

    async def sync(self, live: Mapping[UUID, PolicyRef]) -> None:
        """Look at the engine, bring in what is live and not there, and move over to it."""
        self.begun = turn = self.begun + 1
        status = await self.look()
        if status is not None:
            self._fence(status)
            self._failures = {p: f for p, f in self._failures.items() if p in live.values()}
            for lineage_id in self.serving.keys() - live.keys():
                del self.serving[lineage_id]
            for policy in live.values():
                self._adopt(policy, status)
                await self._bring(policy, status)
        self.ended = turn

    def _fence(self, status: EngineStatus) -> None:
        """Stop serving what the engine no longer has."""
        for lineage_id, policy in list(self.serving.items()):
            if not _has(status, policy):
                log.warning("version_lost", engine=self.name, policy_version=policy.version)
                del self.serving[lineage_id]

    def _adopt(self, live: PolicyRef, status: EngineStatus) -> None:
        """Serve the newest earlier version that is there, until the live one is."""
        if live.lineage_id in self.serving or live.kind is not PolicyKind.LORA:
            return
        prefix = f"{live.lineage_id.hex}-v"
        earlier = [
            int(number)
            for name in status.adapters
            if name.startswith(prefix)
            and (number := name.removeprefix(prefix)).isdecimal()
            and int(number) < live.version
        ]
        if earlier:
            self.serving[live.lineage_id] = PolicyRef(
                lineage_id=live.lineage_id, version=max(earlier), kind=PolicyKind.LORA
            )

    async def _bring(self, policy: PolicyRef, status: EngineStatus) -> None:
        before = self.serving.get(policy.lineage_id)
        if before == policy:
            return
        load_ms = None
        if not _has(status, policy):
            failure = self._failures.get(policy)
            if failure is not None and self._clock() < failure.retry_at:
                return
            try:
                load_ms = await self.engine.load(policy)
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
        self._failures.pop(policy, None)
        self.serving[policy.lineage_id] = policy
        log.info(
            "version_serving",
            engine=self.name,
            lineage=policy.lineage_id.hex,
            policy_version=policy.version,
            before=before.version if before else None,
            load_ms=load_ms,
        )

    def describe(self) -> dict[str, Any]:
        """For people: what it serves, and why not."""
        status = self.status
        return {
            "name": self.name,
            "healthy": self.healthy,
            "error": self.error,
            "model": status.model if status else None,
            "running": status.running if status else None,
            "queued": status.queued if status else None,
            "serving": {key.hex: policy.version for key, policy in self.serving.items()},
            "failing": {
                f"{policy.lineage_id.hex}-v{policy.version}": failure.reason
                for policy, failure in self._failures.items()
            },
        }


def _has(status: EngineStatus, policy: PolicyRef) -> bool:
    if policy.kind is PolicyKind.LORA:
        return policy.adapter in status.adapters
    if policy.kind is PolicyKind.FULL:
        return status.weight_version == weight_version(policy)
    return True
