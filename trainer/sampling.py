"""Claiming a batch: what the schedule chooses, leased and loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.errors import StoreError, StoreUnavailable
from gateway.records import FinishReason, SampleHead, TrainingSample
from gateway.store.samples import SampleStore
from gateway.telemetry import get_logger
from trainer.config import TrainerConfig, TrainerSettings
from trainer.packing import defect
from trainer.schedule import Choice, choose, lag

log = get_logger(__name__)

#: Each round drops what cannot be trained on, so another may find a better batch.
_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """Leased samples, oldest first, with their version lags."""

    samples: tuple[TrainingSample, ...]
    lags: tuple[int, ...]

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(sample.id for sample in self.samples)


class Sampler:
    """Claims batches of one lineage for a back end of `vocab` ids."""

    def __init__(
        self, store: SampleStore, lineage_id: UUID, settings: TrainerSettings, vocab: int
    ) -> None:
        self._store, self._lineage_id, self._vocab = store, lineage_id, vocab
        self._settings = settings

    async def claim(self, epoch: int, live_version: int, now: float) -> Claim | None:
        """A batch that is due, or None. What must not be trained on is dropped with a reason.

        Raises NotLeader, StoreUnavailable.
        """
        for _ in range(_ROUNDS):
            heads, waiting = await self.line(live_version)
            choice = self.choice(heads, waiting, live_version, now)
            useless = dict.fromkeys(choice.stale, "stale")
            useless |= dict.fromkeys(choice.neutral, "score_zero")
            await self._drop(epoch, live_version, useless)
            if not choice.due:
                if useless:
                    continue
                return None
            ids = [head.id for head in choice.chosen]
            try:
                await self._store.lease(self._lineage_id, epoch, ids)
            except StoreUnavailable:
                raise
            except StoreError as error:
                # One was judged again and withdrawn since the window was read.
                log.info("claim_again", reason=error.message)
                continue
            loaded = {sample.id: sample for sample in await self._store.load(ids)}
            bad = {
                head: reason
                for head in choice.chosen
                if (reason := self.refusal(loaded.get(head.id)))
            }
            if not bad:
                lags = tuple(lag(head, live_version) for head in choice.chosen)
                return Claim(tuple(loaded[head.id] for head in choice.chosen), lags)
            await self._drop(epoch, live_version, bad)
            await self._store.release(self._lineage_id, epoch)
        return None

    async def line(self, live_version: int) -> tuple[list[SampleHead], list[float]]:
        """Samples that may be taken, and arrivals of turns that hold a place without a verdict."""
        settings = self._settings
        heads = await self._store.window(self._lineage_id, max(4 * settings.window, 256))
        if settings.trainer.order == "greedy":
            return heads, []
        fresh = max(0, live_version - settings.freshness.max_lag)
        return heads, await self._store.waiting(self._lineage_id, fresh, settings.window)

    def choice(
        self,
        heads: Sequence[SampleHead],
        waiting: Sequence[float],
        live_version: int,
        now: float,
    ) -> Choice:
        """What these settings choose of a line."""
        settings = self._settings
        return choose(
            heads,
            waiting=waiting,
            live_version=live_version,
            max_lag=settings.freshness.max_lag,
            batch=settings.batch,
            window=settings.window,
            min_batch=settings.min_batch,
            overdue_before=now - settings.trainer.max_wait_s,
            order=settings.trainer.order,
            per_session=settings.trainer.per_session,
        )

    def refusal(self, sample: TrainingSample | None) -> str | None:
        """Why a sample must not be trained on, or None."""
        if sample is None:
            return "chain_gap"
        return refusal(sample, self._settings.trainer, self._vocab)

    async def _drop(self, epoch: int, live_version: int, reasons: Mapping[SampleHead, str]) -> None:
        groups: dict[str, list[SampleHead]] = defaultdict(list)
        for head, reason in reasons.items():
            groups[reason].append(head)
        for reason, group in groups.items():
            ids = [head.id for head in group]
            lags = [lag(head, live_version) for head in group]
            await self._store.drop(self._lineage_id, epoch, ids, reason, lags)
            log.info("dropped", reason=reason, samples=len(ids), lag_max=max(lags))


def refusal(sample: TrainingSample, config: TrainerConfig, vocab: int) -> str | None:
    """Why a sample must not be trained on whatever the line, or None (pure)."""
    if sample.finish_reason is FinishReason.ABORT:
        return "aborted"
    if sample.finish_reason is FinishReason.LENGTH and (
        config.truncated == "never" or (config.truncated == "negative" and sample.score > 0)
    ):
        return "truncated"
    return defect(sample, vocab=vocab, max_tokens=config.max_tokens)
