"""What a run of swaps comes to (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bench.figures import percentile
from bench.swap_load import Reply
from bench.swap_spans import Turn

#: From when a version was named until every engine had moved to it.
Window = tuple[float, float]


def silences(replies: Sequence[Reply], windows: Sequence[Window]) -> list[float]:
    """For each swap, the longest time that touches it in which nothing comes; milliseconds."""
    times = sorted(at for reply in replies for at in reply.parts)
    gaps = list(pairwise(times))
    return [
        1e3 * max((b - a for a, b in gaps if a <= end and b >= begin), default=0.0)
        for begin, end in windows
    ]


def touched(reply: Reply, windows: Sequence[Window]) -> bool:
    """Whether a request ran while a version changed."""
    return any(reply.began <= end and reply.ended >= begin for begin, end in windows)


def part(
    replies: Sequence[Reply],
    turns: Sequence[Turn],
    windows: Sequence[Window],
    pauses: Sequence[float],
    again: int,
) -> dict[str, Any]:
    """What was seen, for `summary` to put together with other parts of the same way to swap.

    `turns` are those on record, `again` how many attempts were second ones. Latency is compared
    between complete replies of one length: those that ran while a version changed, and all others.
    """
    whole = [reply for reply in replies if reply.complete]
    known = {str(turn.id): turn for turn in turns}
    answered = [reply for reply in replies if not reply.failed]
    kept = [known[reply.turn] for reply in answered if reply.turn in known]
    return {
        "swaps": len(windows),
        "requests": len(replies),
        "failed": len(replies) - len(answered),
        "truncated": sum(reply.truncated for reply in replies)
        + sum(turn.finish == "abort" for turn in turns),
        "restarted": again + sum(turn.again for turn in turns),
        "unstored": len(answered) - len(kept),
        "spanning": sum(len(turn.spans) > 1 for turn in turns),
        "why": sorted({reply.why for reply in replies if reply.why is not None})[:10],
        "pauses": list(pauses),
        "during": [1e3 * (r.ended - r.began) for r in whole if touched(r, windows)],
        "calm": [1e3 * (r.ended - r.began) for r in whole if not touched(r, windows)],
    }


_ALWAYS = ("swaps", "requests", "failed", "truncated", "restarted", "unstored")
_COUNTS = ("spanning", "spans_checked", "spans_told_apart", "spans_wrong")


def summary(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one way to swap. Added are the differences of equal percentiles."""
    pauses, during, calm = (
        [value for one in parts for value in one[name]] for name in ("pauses", "during", "calm")
    )

    def total(name: str) -> int:
        return sum(one[name] for one in parts)

    def added(share: float) -> float | None:
        if not during or not calm:
            return None
        return round(percentile(during, share) - percentile(calm, share), 1)

    return {
        **{name: total(name) for name in _ALWAYS},
        "pause_ms_p50": round(percentile(pauses, 0.5), 1),
        "pause_ms_p99": round(percentile(pauses, 0.99), 1),
        "request_ms_p50": round(percentile(calm, 0.5), 1) if calm else None,
        "added_ms_p50": added(0.5),
        "added_ms_p99": added(0.99),
        **{name: total(name) for name in _COUNTS if name in parts[0]},
    }
