"""What is on record of the requests, held against the weights that should have sampled them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.records import VersionSpan
from gateway.store.database import Database
from gateway.store.packing import unpack_ids, unpack_logprobs

#: Of each version, so many spans are scored again, and all that share a reply with another.
CHECKED = 3
TOLERANCE_NATS = 2e-3

# In the order of their ids a turn comes after its parent.
_TURNS = """
SELECT id, parent_id, shared_len, prompt_ids, sampled_ids, logprobs, spans, finish_reason, retry_of
FROM turns ORDER BY id
"""

#: The log-probabilities of ids[start:].
Score = Callable[[Sequence[int], int], Awaitable[list[float]]]
#: Brings in the weights of a number, and says how to score by them.
Weights = Callable[[int], Awaitable[Score]]

#: Spans that are scored at once.
_TOGETHER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One stored reply; `prompt` is all that the engine saw."""

    id: UUID
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish: str
    again: bool


async def stored(database: Database) -> list[Turn]:
    """All turns on record, the oldest first."""
    turns: dict[UUID, Turn] = {}
    for row in await database.fetch(_TURNS):
        before: tuple[int, ...] = ()
        if row["shared_len"]:
            parent = turns[row["parent_id"]]
            before = (*parent.prompt, *parent.ids)[: row["shared_len"]]
        turns[row["id"]] = Turn(
            id=row["id"],
            prompt=(*before, *unpack_ids(row["prompt_ids"])),
            ids=tuple(unpack_ids(row["sampled_ids"])),
            logprobs=tuple(unpack_logprobs(row["logprobs"])),
            spans=tuple(VersionSpan(*span) for span in row["spans"]),
            finish=row["finish_reason"],
            again=row["retry_of"] is not None,
        )
    return list(turns.values())


def gaps_in_spans(turn: Turn) -> bool:
    """Whether the spans do not tell the version of each sampled token exactly once (pure)."""
    starts = [0, *(span.end for span in turn.spans)]
    return starts != [*(span.start for span in turn.spans), len(turn.ids)]


def chosen(turns: Sequence[Turn]) -> list[tuple[Turn, VersionSpan]]:
    """Spans to score again (pure)."""
    found: list[tuple[Turn, VersionSpan]] = []
    seen: dict[int, int] = defaultdict(int)
    for turn in turns:
        for span in turn.spans:
            if span.start == span.end:
                continue
            seen[span.version] += 1
            if len(turn.spans) > 1 or seen[span.version] <= CHECKED:
                found.append((turn, span))
    return found


async def checked(turns: Sequence[Turn], load: Weights, weights: int) -> dict[str, int]:
    """Score spans again, with the weights that should have sampled them and with others.

    Versions of equal number modulo `weights` have the same. A span that is told wrong without any
    scoring, since it leaves tokens out, counts as wrong, too.
    """
    spans = chosen(turns)
    wrong, apart = sum(map(gaps_in_spans, turns)), 0
    for number in range(weights):
        score = await load(number)
        own = [pair for pair in spans if pair[1].version % weights == number]
        others = [pair for pair in spans if (pair[1].version - number) % weights == 1]
        wrong += sum(await _differing(own, score))
        apart += sum(await _differing(others, score))
    return {"spans_checked": len(spans), "spans_told_apart": apart, "spans_wrong": wrong}


async def _differing(spans: Sequence[tuple[Turn, VersionSpan]], score: Score) -> list[bool]:
    """Of each span, whether some token's log-probability is another than what was told."""

    async def differs(turn: Turn, span: VersionSpan) -> bool:
        ids = [*turn.prompt, *turn.ids[: span.end]]
        found = await score(ids, len(turn.prompt) + span.start)
        told = turn.logprobs[span.start : span.end]
        return max(abs(a - b) for a, b in zip(found, told, strict=True)) > TOLERANCE_NATS

    found: list[bool] = []
    for start in range(0, len(spans), _TOGETHER):
        some = spans[start : start + _TOGETHER]
        found += await asyncio.gather(*(differs(*pair) for pair in some))
    return found
