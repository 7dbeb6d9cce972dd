"""Candidates on their way to being live, across the death of a trainer.

A canary is waited for: training goes on from it or from the live version, never from both.
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from gateway.errors import CheckpointCorrupt, Conflict, NonFinite, NotLeader
from gateway.records import PolicyRef
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.backends.base import Proof
from trainer.checkpoint import prune
from trainer.compute import Compute
from trainer.config import TrainerConfig
from trainer.drain import Drain
from trainer.learner import Learner
from trainer.lives import Lives
from trainer.publish import Publication, Publisher
from trainer.watch import OPEN, Watch

log = get_logger(__name__)


class Delivery:
    """Keeps what is in memory, what Postgres names and what engines serve in step."""

    def __init__(
        self,
        lineage_id: UUID,
        *,
        config: TrainerConfig,
        policies: PolicyStore,
        learner: Learner,
        publisher: Publisher,
        drain: Drain,
        watch: Watch,
        compute: Compute,
        stop: asyncio.Event,
        lives: Lives,
    ) -> None:
        self._lineage_id, self._config = lineage_id, config
        self._policies, self._learner = policies, learner
        self._publisher, self._drain, self._watch = publisher, drain, watch
        self._compute, self._stop, self._lives = compute, stop, lives

    async def resume(self, epoch: int) -> PolicyRef:
        """Bring into memory what Postgres names; the version that is live then.

        A candidate whose trainer died is published first, or refused. Raises NotLeader where the
        live version's files are not those that were written: what it came from is live then.
        """
        await self._watch.start(epoch)
        live = await self._policies.live_of(self._lineage_id)
        candidate = await self._policies.candidate_of(self._lineage_id)
        if candidate is not None:
            try:
                await self._restore(candidate)
            except CheckpointCorrupt as error:
                await self._refuse(epoch, candidate, error.message)
            else:
                return await self.publish(epoch, live, candidate)
        await self._go_back(epoch, live)
        # What the trainer before this one had no time to unload, and what was undone.
        await self._drained(live)
        return live

    async def publish(self, epoch: int, live: PolicyRef, candidate: PolicyRef) -> PolicyRef:
        """Publish the policy in memory until it is live or refused; what is live then.

        Where no engine answers, or another version is pinned, it is tried again until `stop`, and
        left to the next leader. Raises NotLeader where it was taken back: what is live is then led
        in a new epoch.
        """
        began = time.time()
        if (excess := await self._excess(candidate)) is not None:
            await self._refuse(epoch, candidate, excess)
            await self._go_back(epoch, live)
            return live
        try:
            proof = await self._compute.run(self._learner.proof)
        except NonFinite as error:
            await self._refuse(epoch, candidate, error.message)
            await self._go_back(epoch, live)
            return live
        while (done := await self._attempt(epoch, live, candidate, proof)) is None:
            await within(self._config.publish.retry_s, self._stop)
            if self._stop.is_set():
                return live
        if done.outcome == "refused":
            log.error("refused", policy_version=candidate.version, reason=done.reason)
            await self._go_back(epoch, live)
            return live
        log.info(
            done.outcome,
            policy_version=candidate.version,
            swap_ms=round(done.swap_ms, 1),
            probe_max_diff=done.probe_max_diff,
            engines={swap.engine: swap.outcome for swap in done.swaps},
        )
        if done.outcome == "canary":
            await self._drained(live)
            if not await self._passed(epoch, candidate):
                return live
        await self._lives.live(self._lineage_id, candidate.version, began, time.time())
        await self._drained(candidate)
        await self._prune(candidate)
        return candidate

    async def _attempt(
        self, epoch: int, live: PolicyRef, candidate: PolicyRef, proof: Proof
    ) -> Publication | None:
        """None where it has to wait."""
        standing = await self._policies.standing(self._lineage_id)
        if standing.epoch != epoch:
            raise NotLeader(f"epoch {epoch} of lineage {self._lineage_id} is over")
        if standing.pinned is not None:
            reason: str | None = f"version {standing.pinned} is pinned"
        else:
            done = await self._publisher.publish(candidate, epoch=epoch, live=live, proof=proof)
            if done.outcome != "unreachable":
                return done
            reason = done.reason
        log.warning("publish_waits", policy_version=candidate.version, reason=reason)
        return None

    async def _passed(self, epoch: int, canary: PolicyRef) -> bool:
        """Wait until a canary is live; false where `stop` came first. Raises NotLeader."""
        while not self._stop.is_set():
            self._watch.changed.clear()
            standing = await self._policies.standing(self._lineage_id)
            if standing.live.version == canary.version:
                return True
            if standing.epoch != epoch or standing.canary is None:
                raise NotLeader(f"version {canary.version} is no canary any more")
            await within(self._config.publish.gate.look_s, self._watch.changed, self._stop)
        return False

    async def _excess(self, candidate: PolicyRef) -> str | None:
        """Why a version may not even be tried: a step that went too far; None where it may."""
        gate = self._config.publish.gate
        if gate.mode == "off":
            return None
        metrics = await self._policies.metrics_of(self._lineage_id, candidate.version)
        for name, limit in (("step_kl", gate.max_kl), ("kl", gate.max_base_kl)):
            if limit is not None and not metrics.get(name, 0.0) <= limit:
                return f"{name} is {metrics[name]:.3g} nats a token, the limit {limit:g}"
        return None

    async def _drained(self, live: PolicyRef) -> None:
        """Begin to unload what nobody needs: not what the gate may go back to."""
        standing = await self._policies.standing(self._lineage_id)
        keep = {int(standing.gate["anchor"])} if standing.gate.get("state") == OPEN else set()
        undone = await self._policies.undone(self._lineage_id)
        await self._drain.start(live.version, keep=keep, undone=undone)

    async def _refuse(self, epoch: int, candidate: PolicyRef, reason: str) -> None:
        log.error("refused", policy_version=candidate.version, reason=reason)
        await self._policies.refuse(self._lineage_id, epoch, candidate.version, reason)

    async def _go_back(self, epoch: int, live: PolicyRef) -> None:
        """Have the live version in memory; it is taken back where nobody can go on from it."""
        try:
            await self._restore(live)
        except CheckpointCorrupt as error:
            try:
                await self._watch.take_back(epoch, live.version, error.message)
            except Conflict as conflict:
                raise NotLeader(f"{error.message}; {conflict.message}") from None
            raise NotLeader(f"version {live.version} was taken back: {error.message}") from None

    async def _restore(self, policy: PolicyRef) -> None:
        checkpoint = await self._policies.checkpoint_of(self._lineage_id, policy.version)
        await self._compute.run(lambda: self._learner.restore(policy, checkpoint))

    async def _prune(self, live: PolicyRef) -> None:
        """Delete old versions' files, but for those that a rollback may need."""
        standing = await self._policies.standing(self._lineage_id)
        anchor = standing.gate.get("anchor", live.version)
        named = await self._policies.uris(self._lineage_id, {live.version, int(anchor)})
        root, keep = self._config.directory / self._lineage_id.hex, self._config.publish.keep
        deleted = await self._compute.run(lambda: prune(root, named=named, keep=keep))
        if deleted:
            await self._policies.forget_files(self._lineage_id, deleted)
        log.debug("pruned", versions=deleted)


async def within(seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events is set, at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
