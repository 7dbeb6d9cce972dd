"""Claiming a batch: what the schedule chooses, leased and loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from gateway.errors import StoreError, StoreUnavailable
from gateway.records import FinishReason, SampleHead, TrainingSample
from gateway.store.samples import SampleStore
from gateway.telemetry import get_logger
from trainer.config import TrainerSettings
from trainer.packing import defect
from trainer.schedule import choose, lag

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
        settings = self._settings
        for _ in range(_ROUNDS):
            heads = await self._store.window(self._lineage_id, max(4 * settings.window, 256))
            choice = choose(
                heads,
                waiting=await self._waiting(live_version),
                order=settings.trainer.order,
                per_session=settings.trainer.per_session,
                live_version=live_version,
                max_lag=settings.freshness.max_lag,
                batch=settings.batch,
                window=settings.window,
                min_batch=settings.min_batch,
                overdue_before=now - settings.trainer.max_wait_s,
            )
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
                if (reason := self._refusal(loaded.get(head.id)))
            }
            if not bad:
                lags = tuple(lag(head, live_version) for head in choice.chosen)
                return Claim(tuple(loaded[head.id] for head in choice.chosen), lags)
            await self._drop(epoch, live_version, bad)
            await self._store.release(self._lineage_id, epoch)
        return None

    async def _waiting(self, live_version: int) -> list[float]:
        """Arrivals of turns that hold a place in the line until they have a verdict."""
        if self._settings.trainer.order == "greedy":
            return []
        fresh = max(0, live_version - self._settings.freshness.max_lag)
        return await self._store.waiting(self._lineage_id, fresh, self._settings.window)

    def _refusal(self, sample: TrainingSample | None) -> str | None:
        """Why a leased sample must not be trained on, or None."""
        if sample is None:
            return "chain_gap"
        if sample.finish_reason is FinishReason.ABORT:
            return "aborted"
        mode = self._settings.trainer.truncated
        if sample.finish_reason is FinishReason.LENGTH and (
            mode == "never" or (mode == "negative" and sample.score > 0)
        ):
            return "truncated"
        return defect(sample, vocab=self._vocab, max_tokens=self._settings.trainer.max_tokens)

    async def _drop(self, epoch: int, live_version: int, reasons: Mapping[SampleHead, str]) -> None:
        groups: dict[str, list[SampleHead]] = defaultdict(list)
        for head, reason in reasons.items():
            groups[reason].append(head)
        for reason, group in groups.items():
            ids = [head.id for head in group]
            lags = [lag(head, live_version) for head in group]
            await self._store.drop(self._lineage_id, epoch, ids, reason, lags)
            log.info("dropped", reason=reason, samples=len(ids), lag_max=max(lags))
