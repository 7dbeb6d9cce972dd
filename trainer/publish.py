"""From a candidate that Postgres names to the version that is served.

Every engine is given the version beside the one that serves, and must then report the trainer's
own log-probabilities on a probe. Then it is live, or a canary that its gate decides on. An engine
that cannot be reached, or says that it takes no adapters, is skipped, and brought to the live
version before it serves again by whoever routes to it; one that refuses the version or computes
something else proves the version bad for all. Whole weights take the place of those that serve: see
`trainer.replace`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.engine.base import Engine
from gateway.engine.loading import reading_s
from gateway.engine.member import NO_ADAPTERS
from gateway.errors import CheckpointCorrupt, EngineError, EngineRejected
from gateway.records import PolicyKind, PolicyRef, SwapRecord
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.backends.base import Proof
from trainer.config import PublishSettings
from trainer.proving import difference, open_swap
from trainer.replace import BAD, Replacement
from trainer.watch import opened

log = get_logger(__name__)

Outcome = Literal["published", "canary", "refused", "unreachable"]

#: What becomes of a version at an engine that says nothing of it.
AWAY = ("unreachable", "incapable")


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
        self,
        policies: PolicyStore,
        engines: Sequence[Engine],
        settings: PublishSettings,
        replacement: Replacement,
    ) -> None:
        self._policies, self._engines, self._settings = policies, engines, settings
        self._replacement = replacement
        self._without: set[str] = set()

    async def publish(
        self, policy: PolicyRef, *, epoch: int, live: PolicyRef, proof: Proof
    ) -> Publication:
        """Load, prove and promote or try out, or refuse. Raises NotLeader, StoreUnavailable.

        `unreachable` leaves the candidate as it is, to be tried again.
        """
        lineage, whole = policy.lineage_id, policy.kind is PolicyKind.FULL
        try:
            swaps = await self._brought(policy, live, proof)
        except CheckpointCorrupt as error:
            await self._policies.refuse(lineage, epoch, policy.version, error.message)
            return Publication(outcome="refused", reason=error.message, swaps=())
        if all(swap.outcome in AWAY for swap in swaps):
            without = any(swap.outcome == "incapable" for swap in swaps)
            reason = f"no engine can be reached{' that takes adapters' if without else ''}"
            return Publication(outcome="unreachable", reason=reason, swaps=swaps)
        for swap in swaps:
            if not whole or swap.outcome in AWAY:
                await self._policies.record_swap(swap)
        bad = next((swap for swap in swaps if swap.outcome in BAD), None)
        if bad is not None:
            reason = f"{bad.outcome} by {bad.engine}: {bad.detail}"
            await self._policies.refuse(lineage, epoch, policy.version, reason)
            if not whole:
                await self._withdraw(policy, swaps)
            return Publication(outcome="refused", reason=reason, swaps=swaps)
        gating = self._settings.gate
        if whole and gating.mode == "canary":
            # An engine has one set of whole weights: it cannot give a share of sessions others.
            log.info("canary_watched", lineage=lineage.hex, policy_version=policy.version)
            gating = gating.model_copy(update={"mode": "watch"})
        gate = opened(await self._policies.standing(lineage), gating, time.time())
        if gating.mode == "canary":
            await self._policies.try_out(lineage, epoch, policy.version, gating.share, gate)
            return Publication(outcome="canary", reason=None, swaps=swaps)
        await self._policies.promote(lineage, epoch, policy.version, gate)
        return Publication(outcome="published", reason=None, swaps=swaps)

    async def _brought(
        self, policy: PolicyRef, live: PolicyRef, proof: Proof
    ) -> tuple[SwapRecord, ...]:
        """Adapters go to all engines at once, whole weights to one after the other."""
        if policy.kind is PolicyKind.FULL:
            return await self._replacement.bring(policy, live, proof)
        every = [self._bring(engine, policy, live.version, proof) for engine in self._engines]
        return tuple(await asyncio.gather(*every))

    async def _bring(
        self, engine: Engine, policy: PolicyRef, live_version: int, proof: Proof
    ) -> SwapRecord:
        """Load and prove on one engine, within the time-out."""
        swap = open_swap(engine.name, policy.lineage_id, live_version, policy.version)
        limit_s = self._settings.load_timeout_s + await asyncio.to_thread(reading_s, policy)
        load_ms: float | None = None
        gap: float | None = None
        detail: str | None = None
        try:
            async with asyncio.timeout(limit_s):
                if not (await engine.status()).supports_lora:
                    return self._incapable(swap)
                self._without.discard(engine.name)
                load_ms = await engine.load(policy)
                gap = await difference(engine, policy, proof)
        except EngineRejected as error:
            outcome, detail = "rejected", error.message
        except EngineError as error:
            outcome, detail = "unreachable", error.message
        except TimeoutError:
            outcome, detail = "unreachable", f"not done in {limit_s:.0f} s"
        else:
            outcome = "loaded"
            if not gap <= proof.tolerance:
                outcome = "mismatch"
                detail = f"log-probabilities differ by {gap:.4g} nats"
        return replace(
            swap,
            outcome=outcome,
            detail=detail,
            load_ms=load_ms,
            # JSON and the log have no word for what is not a number.
            probe_max_diff=gap if gap is None or math.isfinite(gap) else None,
            ended_at=time.time(),
        )

    def _incapable(self, swap: SwapRecord) -> SwapRecord:
        """An engine that takes no adapters says nothing of a version; told once, not each time."""
        if swap.engine not in self._without:
            log.warning("engine_without_adapters", engine=swap.engine)
        self._without.add(swap.engine)
        return replace(swap, outcome="incapable", detail=NO_ADAPTERS, ended_at=time.time())

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
