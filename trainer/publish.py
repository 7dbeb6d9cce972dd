"""From a candidate that Postgres names to the version that is served.

Every engine is given the version beside the one that serves, and must then report the trainer's
own log-probabilities on a probe. An engine that cannot be reached is skipped, and brought to the
live version before it serves again by whoever routes to it; one that refuses the version or
computes something else proves the version bad for all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from gateway.engine.base import Engine
from gateway.errors import EngineError, EngineRejected
from gateway.records import PolicyRef, SwapRecord
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.backends.base import Proof
from trainer.config import PublishSettings

log = get_logger(__name__)

Outcome = Literal["published", "refused", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """How it went. `swaps` has one record an engine."""

    outcome: Outcome
    reason: str | None
    swaps: tuple[SwapRecord, ...]

    @property
    def swap_ms(self) -> float:
        """The longest load."""
        return max((swap.load_ms or 0.0 for swap in self.swaps), default=0.0)

    @property
    def probe_max_diff(self) -> float:
        return max((swap.probe_max_diff or 0.0 for swap in self.swaps), default=0.0)


class Publisher:
    """Brings versions of one lineage to its engines."""

    def __init__(
        self, policies: PolicyStore, engines: Sequence[Engine], settings: PublishSettings
    ) -> None:
        self._policies, self._engines, self._settings = policies, engines, settings

    async def publish(
        self, policy: PolicyRef, *, epoch: int, live_version: int, proof: Proof
    ) -> Publication:
        """Load, prove and promote, or refuse. Raises NotLeader, StoreUnavailable.

        `unreachable` leaves the candidate as it is, to be tried again.
        """
        swaps = tuple(
            await asyncio.gather(
                *(self._bring(engine, policy, live_version, proof) for engine in self._engines)
            )
        )
        if all(swap.outcome == "unreachable" for swap in swaps):
            reason = "no engine can be reached"
            return Publication(outcome="unreachable", reason=reason, swaps=swaps)
        for swap in swaps:
            await self._policies.record_swap(swap)
        bad = next((swap for swap in swaps if swap.outcome in ("rejected", "mismatch")), None)
        lineage = policy.lineage_id
        if bad is not None:
            reason = f"{bad.outcome} by {bad.engine}: {bad.detail}"
            await self._policies.refuse(lineage, epoch, policy.version, reason)
            await self._withdraw(policy, swaps)
            return Publication(outcome="refused", reason=reason, swaps=swaps)
        await self._policies.promote(lineage, epoch, policy.version)
        return Publication(outcome="published", reason=None, swaps=swaps)

    async def _bring(
        self, engine: Engine, policy: PolicyRef, live_version: int, proof: Proof
    ) -> SwapRecord:
        """Load and prove on one engine, within the time-out."""
        swap = _open_swap(engine.name, policy.lineage_id, live_version, policy.version)
        load_ms: float | None = None
        difference: float | None = None
        detail: str | None = None
        try:
            async with asyncio.timeout(self._settings.load_timeout_s):
                load_ms = await engine.load(policy)
                difference = await self._difference(engine, policy, proof)
        except EngineRejected as error:
            outcome, detail = "rejected", error.message
        except EngineError as error:
            outcome, detail = "unreachable", error.message
        except TimeoutError:
            outcome, detail = "unreachable", f"not done in {self._settings.load_timeout_s:g} s"
        else:
            outcome = "loaded"
            if not difference <= proof.tolerance:
                outcome = "mismatch"
                detail = f"log-probabilities differ by {difference:.4g} nats"
        return replace(
            swap,
            outcome=outcome,
            detail=detail,
            load_ms=load_ms,
            # JSON and the log have no word for what is not a number.
            probe_max_diff=difference if difference is None or math.isfinite(difference) else None,
            ended_at=time.time(),
        )

    async def _difference(self, engine: Engine, policy: PolicyRef, proof: Proof) -> float:
        """The largest difference of a log-probability; infinite where one is missing or nan."""
        largest = 0.0
        for probe, expected in zip(proof.probes, proof.expected, strict=True):
            found = await engine.score(probe.ids, probe.start, policy)
            if len(found) != len(expected):
                return math.inf
            for ours, theirs in zip(expected, found, strict=True):
                gap = abs(ours - theirs)
                largest = max(largest, math.inf if math.isnan(gap) else gap)
        return largest

    async def _withdraw(self, policy: PolicyRef, swaps: Sequence[SwapRecord]) -> None:
        """Take a refused version out of the engines that have it; nothing uses it."""
        touched = {swap.engine for swap in swaps if swap.load_ms is not None}
        for engine in self._engines:
            if engine.name not in touched:
                continue
            try:
                async with asyncio.timeout(self._settings.load_timeout_s):
                    await engine.unload(policy)
            except (EngineError, TimeoutError) as error:
                log.warning("withdraw_failed", engine=engine.name, error=str(error))


def _open_swap(engine: str, lineage_id: UUID, from_version: int, to_version: int) -> SwapRecord:
    now = time.time()
    return SwapRecord(
        lineage_id=lineage_id,
        engine=engine,
        from_version=from_version,
        to_version=to_version,
        outcome="open",
        started_at=now,
        ended_at=now,
    )
