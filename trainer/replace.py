"""Bringing whole weights to engines, one engine after the other.

    take the engine's turn -> what it computes now -> replace -> probe -> record -> next engine

While an engine's turn is taken, gateways send new requests elsewhere, or hold them where there is
no other; what runs there goes on with the new weights. SGLang scores nothing while it is paused,
so the probe follows when it has gone on. At the first engine that refuses the version or computes
something else no further one is touched, and those that have it are brought back: the live
version's weights are read again, and must compute what they did before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gateway.engine.base import Engine, Receiver
from gateway.engine.chunks import reports
from gateway.engine.loading import reading_s
from gateway.engine.movers import Movers
from gateway.errors import EngineError, EngineRejected
from gateway.records import PolicyRef, SwapRecord
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.backends.base import Proof
from trainer.broadcast import Broadcast
from trainer.compute import Compute
from trainer.config import PublishSettings
from trainer.proving import Scores, apart, difference, open_swap, scores

log = get_logger(__name__)

#: Outcomes that prove the version bad, whatever other engines say.
BAD = ("rejected", "mismatch")


@dataclass(frozen=True, slots=True)
class _Before:
    """What an engine computed by the live version, for what is put back to be held against."""

    scores: Scores
    checksum: str | None


@dataclass(slots=True)
class _Round:
    """One candidate on its way over the engines; `before` by the names of those it has come to.

    `limit_s` bounds all that is done at one engine.
    """

    policy: PolicyRef
    live: PolicyRef
    proof: Proof
    limit_s: float
    before: dict[str, _Before | None] = field(default_factory=dict)
    #: The checksum after, and at which engine, by the one before: engines that had the same weights
    #: in the same layout have the same again.
    after: dict[str, tuple[str | None, str]] = field(default_factory=dict)


class Replacement:
    """`bring` gives a version to every engine that can be reached, or to none.

    `check` reads a version's files and raises CheckpointCorrupt where they are not those written.
    """

    def __init__(
        self,
        policies: PolicyStore,
        engines: Sequence[Engine],
        settings: PublishSettings,
        movers: Movers,
        compute: Compute,
        *,
        check: Callable[[PolicyRef], object],
        broadcast: Broadcast | None = None,
    ) -> None:
        self._policies, self._engines, self._settings = policies, engines, settings
        self._movers, self._compute = movers, compute
        self._check, self._broadcast = check, broadcast

    async def bring(
        self, policy: PolicyRef, live: PolicyRef, proof: Proof
    ) -> tuple[SwapRecord, ...]:
        """A record of each engine that was tried, stored before the engine's turn ends.

        Raises StoreUnavailable, and CheckpointCorrupt before any engine is given anything: one
        that fails while it reads such files may be lost.
        """
        await self._compute.run(lambda: self._check(policy))
        reading = [await asyncio.to_thread(reading_s, one) for one in (policy, live)]
        limit_s = self._settings.load_timeout_s + max(reading)
        under_way, swaps = _Round(policy, live, proof, limit_s), []
        for engine in self._engines:
            swaps.append(await self._one(engine, under_way))
            if swaps[-1].outcome in BAD:
                await self._withdraw(swaps, under_way)
                break
        return tuple(swaps)

    async def _one(self, engine: Engine, under_way: _Round) -> SwapRecord:
        """Replace, prove and record at one engine; put back there where it is no good."""
        policy, live = under_way.policy, under_way.live
        swap = open_swap(engine.name, policy.lineage_id, live.version, policy.version)
        limit_s = under_way.limit_s
        async with self._movers.turn(engine.name, limit_s) as mine:
            if not mine:
                detail = f"somebody else has been replacing its weights for {limit_s:.0f} s"
                return replace(swap, outcome="unreachable", detail=detail, ended_at=time.time())
            done = await self._tried(engine, swap, under_way)
            if done.outcome in BAD:
                await self._put_back(engine, under_way)
            if done.outcome != "unreachable":
                await self._policies.record_swap(done)
        return done

    async def _tried(self, engine: Engine, swap: SwapRecord, under_way: _Round) -> SwapRecord:
        policy, proof = under_way.policy, under_way.proof
        load_ms: float | None = None
        gap: float | None = None
        detail: str | None
        try:
            async with asyncio.timeout(under_way.limit_s):
                under_way.before[engine.name] = await self._before(engine, under_way)
                load_ms = await self._given(engine, policy)
                gap = await difference(engine, policy, proof)
                told = (await engine.status()).weight_version
                odd = await self._odd(engine, under_way)
        except EngineRejected as error:
            outcome, detail = "rejected", error.message
        except EngineError as error:
            outcome, detail = "unreachable", error.message
        except TimeoutError:
            outcome, detail = "unreachable", f"not done in {under_way.limit_s:.0f} s"
        else:
            outcome, detail = _judged(gap, proof.tolerance, told, policy)
            if outcome == "loaded" and odd is not None:
                outcome, detail = "mismatch", odd
        return replace(
            swap,
            outcome=outcome,
            detail=detail,
            load_ms=load_ms,
            # From the first call of a replacement to the last it samples nothing.
            pause_ms=load_ms,
            probe_max_diff=gap if gap is None or math.isfinite(gap) else None,
            ended_at=time.time(),
        )

    async def _given(self, engine: Engine, policy: PolicyRef) -> float:
        """Bring the version in; the milliseconds of the pause."""
        if self._broadcast is not None:
            try:
                if isinstance(engine, Receiver):
                    return await self._broadcast.give(engine, policy)
                log.warning("broadcast_failed", engine=engine.name, error="it takes files alone")
            except EngineError as error:
                log.warning("broadcast_failed", engine=engine.name, error=error.message)
        return await engine.load(policy)

    async def _before(self, engine: Engine, under_way: _Round) -> _Before | None:
        """None where it does not serve the live version: there is nothing to hold against."""
        if not reports((await engine.status()).weight_version, under_way.live):
            return None
        found = await scores(engine, under_way.live, under_way.proof.probes)
        return _Before(found, await engine.checksum())

    async def _odd(self, engine: Engine, under_way: _Round) -> str | None:
        """What is wrong with an engine's weights by the checksums of those before it, if anything.

        A probe sees the weights that it uses; a checksum sees all of them.
        """
        before = under_way.before[engine.name]
        if before is None or before.checksum is None:
            return None
        found = await engine.checksum()
        known, other = under_way.after.setdefault(before.checksum, (found, engine.name))
        return None if found == known else f"the checksum of its weights is not that of {other}"

    async def _withdraw(self, swaps: Sequence[SwapRecord], under_way: _Round) -> None:
        """Put back what engines before the one that refused have taken."""
        taken = {swap.engine for swap in swaps if swap.outcome == "loaded"}
        for engine in self._engines:
            if engine.name in taken:
                async with self._movers.turn(engine.name, under_way.limit_s) as mine:
                    if mine:
                        await self._put_back(engine, under_way)

    async def _put_back(self, engine: Engine, under_way: _Round) -> None:
        """The live version's weights again, which must compute what they did before.

        What cannot be put back now is in doubt, serves nobody, and is tried again by gateways.
        """
        live, before = under_way.live, under_way.before.get(engine.name)
        gap: float | None = None
        try:
            async with asyncio.timeout(under_way.limit_s):
                await engine.restore(live)
                if before is not None:
                    found = await scores(engine, live, under_way.proof.probes)
                    gap = apart(before.scores, found)
                    same = before.checksum in (None, await engine.checksum())
                    if gap > under_way.proof.tolerance or not same:
                        await engine.disown()
                        raise EngineRejected("computes something else now", engine=engine.name)
        except (EngineError, TimeoutError) as error:
            log.warning("not_put_back", engine=engine.name, version=live.version, error=str(error))
        else:
            log.info("put_back", engine=engine.name, version=live.version, probe_max_diff=gap)


def _judged(
    gap: float, tolerance: float, told: str | None, policy: PolicyRef
) -> tuple[str, str | None]:
    """Outcome and detail of what an engine computes and says."""
    if gap <= tolerance:
        if reports(told, policy):
            return "loaded", None
        return "rejected", f"it says that it serves {told}"
    if reports(told, policy):
        return "mismatch", f"log-probabilities differ by {gap:.4g} nats"
    return "unreachable", f"it serves {told} by now: it was started anew"
