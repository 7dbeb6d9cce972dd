"""What the next step would train on, and why each other sample would not be; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from gateway.records import SampleHead, TrainingSample
from gateway.store.samples import SampleStore
from trainer.sampling import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """`chosen` samples, oldest first, `due` where a step would begin now.

    `others` are the reasons of the rest that is ready, by turn; `waiting` counts turns that hold
    a place in the line and have no verdict.
    """

    chosen: tuple[TrainingSample, ...]
    due: bool
    others: Mapping[UUID, str]
    waiting: int


async def preview(
    store: SampleStore, sampler: Sampler, *, live_version: int, now: float
) -> Preview:
    """Go through the rounds of a claim without leasing or dropping anything."""
    line = await sampler.line(live_version, now)
    reasons: dict[SampleHead, str] = {}
    while True:
        left = [head for head in line.heads if head not in reasons]
        choice = sampler.choice(replace(line, heads=left), live_version, now)
        reasons |= choice.dropped
        loaded = {sample.id: sample for sample in await store.load([h.id for h in choice.chosen])}
        refused = {
            head: reason
            for head in choice.chosen
            if (reason := sampler.refusal(loaded.get(head.id)))
        }
        if not refused:
            break
        reasons |= refused
    chosen = {head.id for head in choice.chosen}
    others = {
        head.turn_id: reasons.get(head, "later") for head in line.heads if head.id not in chosen
    }
    return Preview(
        chosen=tuple(loaded[head.id] for head in choice.chosen),
        due=choice.due,
        others=others,
        waiting=len(line.waiting),
    )
