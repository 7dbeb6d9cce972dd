"""The training loop.

    claim -> train -> write aside -> advance -> publish
      |        |          |             |          |
      |        |          |             |          `- engines; then Postgres: this one is live
      |        |          |             `- one transaction, fenced by the epoch: names the
      |        |          |                checkpoint and consumes the samples
      |        |          `- a directory that nothing names yet
      |        `- in memory
      `- a lease that ends with the leader

Killed before `advance`, the samples are ready again and the directory is garbage; killed after
it, the next leader finds a candidate and publishes or refuses it. The loop waits for its lead,
for samples, and for an engine that answers; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

from gateway.errors import NonFinite, NotLeader, RankLost, StoreError, TrainerError
from gateway.records import PolicyRef, StepRecord, new_id
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.telemetry import get_logger
from trainer.backends.base import StepAbandoned
from trainer.compute import Compute
from trainer.config import TrainerConfig
from trainer.delivery import Delivery, within
from trainer.learner import ALARM, Learner
from trainer.lives import Lives
from trainer.metrics import Recorder
from trainer.sampling import Claim, Sampler
from trainer.spent import Spent

log = get_logger(__name__)


class Trainer:
    """Trains one lineage for as long as it leads it. `stop` is set from outside."""

    def __init__(
        self,
        lineage_id: UUID,
        *,
        config: TrainerConfig,
        samples: SampleStore,
        policies: PolicyStore,
        sampler: Sampler,
        learner: Learner,
        delivery: Delivery,
        compute: Compute,
        stop: asyncio.Event,
        lives: Lives,
        recorder: Recorder | None = None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lineage_id, self._config = lineage_id, config
        self._samples, self._policies, self._sampler = samples, policies, sampler
        self._learner, self._delivery, self._compute = learner, delivery, compute
        self._stop, self._wake = stop, asyncio.Event()
        self._lives, self._recorder, self._spent = lives, recorder, Spent()
        self._failures = 0
        self._paused, self._held = paused, False
        self.report: dict[str, object] = {"leads": False}

    def wake(self) -> None:
        """There may be samples."""
        self._wake.set()

    async def run(self) -> None:
        """Lead where nobody does, until `stop`.

        Raises TrainerError after too many failed steps in a row, and ConfigError.
        """
        while not self._stop.is_set():
            try:
                await self._contend()
            except (NotLeader, StoreError) as error:
                log.warning("lead_lost", lineage=str(self._lineage_id), error=error.message)
            await within(self._config.poll_s, self._stop)

    async def _contend(self) -> None:
        leadership = await self._policies.become_leader(self._lineage_id)
        if leadership is None:
            return
        epoch = leadership.epoch
        log.info("leads", lineage=str(self._lineage_id), epoch=epoch)
        try:
            await self._samples.release(self._lineage_id, epoch)
            await self._sampler.cut(epoch, time.time(), start=True)
            live = await self._delivery.resume(epoch)
            while not self._stop.is_set() and await leadership.still_leader():
                self.report = {
                    "leads": True,
                    "epoch": epoch,
                    "live": live.version,
                    "paused": self._paused(),
                }
                live = await self._round(epoch, live)
            await self._samples.release(self._lineage_id, epoch)
        finally:
            self.report = {"leads": False}
            await leadership.release()

    async def _round(self, epoch: int, live: PolicyRef) -> PolicyRef:
        """One version, or a wait for samples; the version that is live then."""
        self._wake.clear()
        if self._paused():
            self._held = True
            await within(self._config.poll_s, self._wake, self._stop)
            return live
        with self._spent.on("claim"):
            # After a pause a line is found as by a new leader.
            await self._sampler.cut(epoch, time.time(), start=self._held)
            self._held = False
            claim = await self._sampler.claim(epoch, live.version, time.time())
        if claim is None:
            with self._spent.on("wait"):
                await within(self._config.poll_s, self._wake, self._stop)
            return live
        try:
            candidate = await self._step(epoch, live, claim)
        except StepAbandoned:
            return live
        except RankLost:
            await self._samples.release(self._lineage_id, epoch)
            raise
        except (NonFinite, OSError) as error:
            await self._failed(epoch, claim, error)
            return await self._delivery.resume(epoch)
        self._failures = 0
        with self._spent.on("publish"):
            return await self._delivery.publish(epoch, live, candidate)

    async def _step(self, epoch: int, live: PolicyRef, claim: Claim) -> PolicyRef:
        """Train on a claim; the candidate that Postgres names then."""
        started = time.time()
        with self._spent.on("train"):
            metrics = await self._compute.run(
                lambda: self._learner.train(claim.samples, self._stop.is_set)
            )
        metrics |= claim.figures
        for name in sorted(metrics):
            if name.startswith(ALARM) and metrics[name]:
                what = name.removeprefix(ALARM)
                log.warning("unusual_behaviour", what=what, value=round(metrics[what], 6))
        version = await self._policies.allocate_version(self._lineage_id, epoch)
        with self._spent.on("write"):
            written = await self._compute.run(lambda: self._learner.write(version))
        # What publishing took is that of the version before.
        metrics |= self._spent.figures()
        candidate = PolicyRef(
            lineage_id=self._lineage_id,
            version=version,
            kind=self._learner.kind,
            uri=written.uri,
            checksum=written.checksum,
        )
        ended = time.time()
        step = StepRecord(
            id=new_id(),
            lineage_id=self._lineage_id,
            epoch=epoch,
            from_version=live.version,
            to_version=version,
            policy=candidate,
            checkpoint=written.state,
            sample_ids=claim.ids,
            lags=claim.lags,
            metrics=metrics,
            started_at=started,
            ended_at=ended,
        )
        await self._policies.advance(step)
        if self._recorder is not None:
            self._recorder.stepped(self._lineage_id.hex, version, metrics, claim.lags)
        log.info(
            "trained",
            policy_version=version,
            from_version=live.version,
            seconds=round(ended - started, 3),
            **{name: round(value, 6) for name, value in metrics.items()},
        )
        self._lives.trained(step, claim.samples)
        return candidate

    async def _failed(self, epoch: int, claim: Claim, error: Exception) -> None:
        """Samples that break a step would break the next: they are dropped. A full disk passes."""
        self._failures += 1
        if self._recorder is not None:
            self._recorder.failed(self._lineage_id.hex)
        log.error("step_failed", error=str(error), failures=self._failures)
        if isinstance(error, NonFinite):
            await self._samples.drop(
                self._lineage_id, epoch, list(claim.ids), "not_finite", list(claim.lags)
            )
        await self._samples.release(self._lineage_id, epoch)
        if self._failures >= self._config.max_failures:
            raise TrainerError(f"{self._failures} steps in a row failed, the last: {error}")
        await within(self._config.poll_s, self._stop)
