"""Claiming a batch: what the schedule chooses, leased and loaded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from uuid import UUID

from gateway.errors import StoreError, StoreUnavailable
from gateway.records import FinishReason, SampleHead, TrainingSample, VersionSpan, delay
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
    """Leased samples, oldest first, with their version lags.

    `figures` describe the line that they were taken from, and what was dropped since the claim
    before.
    """

    samples: tuple[TrainingSample, ...]
    lags: tuple[int, ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(sample.id for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Line:
    """Samples that may be taken, and what holds them up.

    `waiting` are the arrivals of turns without a verdict, `open_groups` have a member without one.
    `counted` are the ancestors of the live version, the number of each as if it were the live
    one's less the steps between them.
    """

    heads: Sequence[SampleHead]
    waiting: Sequence[float] = ()
    open_groups: frozenset[str] = frozenset()
    counted: Mapping[int, int] = field(default_factory=dict)


class Sampler:
    """Claims batches of one lineage for a back end of `vocab` ids."""

    def __init__(
        self, store: SampleStore, lineage_id: UUID, settings: TrainerSettings, vocab: int
    ) -> None:
        self._store, self._lineage_id, self._vocab = store, lineage_id, vocab
        self._settings = settings
        self._looked_at = 0.0
        #: Since the last claim, by reason.
        self._given_up: Counter[str] = Counter()
        self._stale: Counter[str] = Counter()
        self._flat_groups = 0

    async def cut(self, epoch: int, now: float, *, start: bool = False) -> int:
        """Drop what a new leader, or one whose judge was away, finds beyond what it can train on.

        The newest (η + 1) * B turns stay: all others would be too stale before their turn came.
        While it runs, only a line beyond the hard cap is cut. Raises NotLeader, StoreUnavailable.
        """
        settings = self._settings
        if not start and now - self._looked_at < settings.trainer.poll_s:
            return 0
        self._looked_at = now
        keep = (settings.freshness.max_lag + 1) * settings.batch
        beyond = keep if start else round(keep * settings.freshness.hard_cap)
        gone = await self._store.cut(self._lineage_id, epoch, keep=keep, beyond=beyond)
        if gone:
            self._given_up["backlog"] += gone
            log.warning("backlog_cut", kept=keep, dropped=gone)
        return gone

    async def claim(self, epoch: int, live_version: int, now: float) -> Claim | None:
        """A batch that is due, or None. What must not be trained on is dropped with a reason.

        Raises NotLeader, StoreUnavailable.
        """
        if strays := await self._store.drop_strays(self._lineage_id, epoch):
            self._given_up["rolled_back"] += strays
            log.info("dropped", reason="rolled_back", samples=strays)
        for _ in range(_ROUNDS):
            line = await self.line(live_version, now)
            choice = self.choice(line, live_version, now)
            await self._drop(epoch, live_version, choice.dropped)
            self._flat_groups += choice.flat_groups
            if not choice.due:
                if choice.dropped:
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
                samples = tuple(
                    _renumbered(loaded[head.id], line.counted) for head in choice.chosen
                )
                return Claim(samples, lags, self._figures(line, choice, lags, live_version))
            await self._drop(epoch, live_version, bad)
            await self._store.release(self._lineage_id, epoch)
        return None

    async def line(self, live_version: int, now: float) -> Line:
        """What waits. Versions are counted along the ancestry: one rolled back is no step."""
        settings = self._settings
        most = settings.freshness.max_lag
        ancestors = await self._store.ancestors(self._lineage_id, live_version, most + 1)
        counted = {version: live_version - steps for steps, version in enumerate(ancestors)}
        heads = [
            replace(head, version_min=counted.get(head.version_min, head.version_min))
            for head in await self._store.window(self._lineage_id, max(4 * settings.window, 256))
        ]
        groups: frozenset[str] = frozenset()
        if settings.trainer.credit.method == "grpo":
            turns = [head.turn_id for head in heads]
            groups = await self._store.open_groups(turns, settings.trainer.group_wait_s)
        if settings.trainer.order == "greedy":
            return Line(heads, (), groups, counted)
        fresh = ancestors[most] if len(ancestors) > most else 0
        since = max(0.0, now - settings.trainer.verdict_wait_s)
        waiting = await self._store.waiting(self._lineage_id, fresh, settings.window, since)
        return Line(heads, waiting, groups, counted)

    def choice(self, line: Line, live_version: int, now: float) -> Choice:
        """What these settings choose of a line."""
        settings = self._settings
        return choose(
            line.heads,
            waiting=line.waiting,
            live_version=live_version,
            max_lag=settings.freshness.max_lag,
            batch=settings.batch,
            window=settings.window,
            min_batch=settings.min_batch,
            overdue_before=now - settings.trainer.max_wait_s,
            order=settings.trainer.order,
            per_session=settings.trainer.per_session,
            method=settings.trainer.credit.method,
            open_groups=line.open_groups,
            groups_before=now - settings.trainer.group_wait_s,
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
            self._given_up[reason] += len(group)
            delays = Counter(delay(head.delay_s) for head in group) if reason == "stale" else {}
            self._stale.update(delays)
            log.info("dropped", reason=reason, samples=len(ids), lag_max=max(lags), **delays)

    def _figures(
        self, line: Line, choice: Choice, lags: Sequence[int], live_version: int
    ) -> dict[str, float]:
        """`lag_k` counts the samples of lag k, `buffered_lag` is of those that stay in line."""
        taken = {*choice.chosen, *choice.dropped}
        left = [lag(head, live_version) for head in line.heads if head not in taken]
        found = {
            "lag_mean": fmean(lags),
            "lag_max": float(max(lags)),
            "lag_min": float(min(lags)),
            **{f"lag_{k}": float(count) for k, count in sorted(Counter(lags).items())},
            "buffered": float(len(left)),
            "buffered_lag_mean": fmean(left) if left else 0.0,
            "buffered_lag_max": float(max(left, default=0)),
            "waiting": float(len(line.waiting)),
            "groups_dropped": float(self._flat_groups),
            **{f"dropped_{reason}": float(n) for reason, n in sorted(self._given_up.items())},
            **{name: float(count) for name, count in sorted(self._stale.items())},
        }
        self._given_up.clear()
        self._stale.clear()
        self._flat_groups = 0
        return found


def _renumbered(sample: TrainingSample, counted: Mapping[int, int]) -> TrainingSample:
    """The same, its tokens as many versions behind as there were steps since."""
    spans = (
        VersionSpan(counted.get(span.version, span.version), span.start, span.end)
        for span in sample.spans
    )
    return replace(sample, spans=tuple(spans))


def refusal(sample: TrainingSample, config: TrainerConfig, vocab: int) -> str | None:
    """Why a sample must not be trained on whatever the line, or None (pure)."""
    if sample.finish_reason is FinishReason.ABORT:
        return "aborted"
    if sample.finish_reason is FinishReason.LENGTH and (
        config.truncated == "never" or (config.truncated == "negative" and sample.score >= 0)
    ):
        return "truncated"
    return defect(sample, vocab=vocab, max_tokens=config.max_tokens)
