"""Candidates on their way to being live, across the death of a trainer."""

from __future__ import annotations

import asyncio
from uuid import UUID

from gateway.errors import CheckpointCorrupt, NonFinite
from gateway.records import PolicyRef
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.checkpoint import prune
from trainer.compute import Compute
from trainer.config import TrainerConfig
from trainer.drain import Drain
from trainer.learner import Learner
from trainer.publish import Publisher

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
        compute: Compute,
        stop: asyncio.Event,
    ) -> None:
        self._lineage_id, self._config = lineage_id, config
        self._policies, self._learner = policies, learner
        self._publisher, self._drain = publisher, drain
        self._compute, self._stop = compute, stop

    async def resume(self, epoch: int) -> PolicyRef:
        """Bring into memory what Postgres names; the version that is live then.

        A candidate whose trainer died is published first, or refused. Raises CheckpointCorrupt
        where the live version's files are not those that were written.
        """
        live = await self._policies.live_of(self._lineage_id)
        candidate = await self._policies.candidate_of(self._lineage_id)
        if candidate is not None:
            try:
                await self._restore(candidate)
            except CheckpointCorrupt as error:
                await self._refuse(epoch, candidate, error.message)
            else:
                return await self.publish(epoch, live, candidate)
        await self._restore(live)
        # What the trainer before this one had no time to unload.
        await self._drain.start(live.version)
        return live

    async def publish(self, epoch: int, live: PolicyRef, candidate: PolicyRef) -> PolicyRef:
        """Publish the policy in memory until it is live or refused; what is live then.

        Where no engine answers it is tried again until `stop`, and left to the next leader.
        """
        try:
            proof = await self._compute.run(self._learner.proof)
        except NonFinite as error:
            await self._refuse(epoch, candidate, error.message)
            await self._restore(live)
            return live
        while True:
            done = await self._publisher.publish(
                candidate, epoch=epoch, live_version=live.version, proof=proof
            )
            if done.outcome != "unreachable":
                break
            log.warning("publish_waits", policy_version=candidate.version, reason=done.reason)
            await within(self._config.publish.retry_s, self._stop)
            if self._stop.is_set():
                return live
        if done.outcome == "refused":
            log.error("refused", policy_version=candidate.version, reason=done.reason)
            await self._restore(live)
            return live
        log.info(
            "published",
            policy_version=candidate.version,
            swap_ms=round(done.swap_ms, 1),
            probe_max_diff=done.probe_max_diff,
            engines={swap.engine: swap.outcome for swap in done.swaps},
        )
        await self._drain.start(candidate.version)
        await self._compute.run(lambda: self._prune(candidate))
        return candidate

    async def _refuse(self, epoch: int, candidate: PolicyRef, reason: str) -> None:
        log.error("refused", policy_version=candidate.version, reason=reason)
        await self._policies.refuse(self._lineage_id, epoch, candidate.version, reason)

    async def _restore(self, policy: PolicyRef) -> None:
        checkpoint = await self._policies.checkpoint_of(self._lineage_id, policy.version)
        await self._compute.run(lambda: self._learner.restore(policy, checkpoint))

    def _prune(self, live: PolicyRef) -> None:
        root = self._config.directory / self._lineage_id.hex
        named = [live.uri] if live.uri else []
        deleted = prune(root, named=named, keep=self._config.publish.keep)
        log.debug("pruned", versions=deleted)


async def within(seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events is set, at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
