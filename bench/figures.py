"""The arithmetic of a measurement: percentiles, medians over rounds, ratios to a baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed (nearest rank).

    Raises ValueError without values or for a share outside (0, 1].
    """
    if not values or not 0 < share <= 1:
        raise ValueError("a percentile needs values, and a share above 0 and at most 1")
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(slots=True, kw_only=True)
class Run:
    """One case on one system in one round.

    `cpu_us` is what the system's own processes used, `store_cpu_us` what its PostgreSQL did.
    """

    requests: int
    tokens: int
    cpu_us: float = 0.0
    store_cpu_us: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)


#: Rounds of each case, for one system.
Runs = Mapping[str, Sequence[Run]]


def per_request(runs: Sequence[Run]) -> float:
    """CPU microseconds a request: the median of the rounds."""
    return statistics.median(run.cpu_us / run.requests for run in runs)


def per_token(runs: Sequence[Run]) -> float:
    """CPU microseconds a token sampled, each request's own share included."""
    return statistics.median(run.cpu_us / run.tokens for run in runs)


def store_per_request(runs: Sequence[Run]) -> float:
    """CPU microseconds of PostgreSQL a request."""
    return statistics.median(run.store_cpu_us / run.requests for run in runs)


def added(
    runs: Sequence[Run], direct: Sequence[Run], share: float, *, first: bool = False
) -> float:
    """How much later a percentile is than without any system between, in milliseconds.

    The median over rounds; `first` compares times to the first token, otherwise whole replies.
    """

    def told(run: Run) -> list[float]:
        return run.first_ms if first else run.latencies_ms

    return statistics.median(
        percentile(told(run), share) - percentile(told(bare), share)
        for run, bare in zip(runs, direct, strict=True)
    )


def figures(runs: Runs, direct: Runs) -> dict[str, float]:
    """What is reported of a system, but for its memory."""
    small, agentic = per_request(runs["small"]), per_request(runs["agentic"])
    return {
        "cpu_us_small": small,
        "cpu_us_small_busy": per_request(runs["busy"]),
        "cpu_us_agentic": agentic,
        "cpu_us_agentic_stream": per_request(runs["first_token"]),
        "cpu_us_chunk": per_token(runs["chunk"]),
        "capacity_small": 1e6 / small,
        "capacity_agentic": 1e6 / agentic,
        "added_ms_p50": added(runs["serial"], direct["serial"], 0.5),
        "added_ms_p99": added(runs["serial"], direct["serial"], 0.99),
        "ttft_added_ms_p50": added(runs["first_token"], direct["first_token"], 0.5, first=True),
        "ttft_added_ms_p99": added(runs["first_token"], direct["first_token"], 0.99, first=True),
        "store_cpu_us_small": store_per_request(runs["small"]),
        "store_cpu_us_agentic": store_per_request(runs["agentic"]),
    }


def ratios(
    systems: Mapping[str, Mapping[str, float]], baseline: str
) -> dict[str, dict[str, float]]:
    """Each system's costs as multiples of the baseline's; empty where that was not measured."""
    base = systems.get(baseline)
    if base is None:
        return {}
    names = ("cpu_us_small", "cpu_us_small_busy", "cpu_us_agentic", "cpu_us_chunk", "rss_mb")
    return {
        system: {name: values[name] / base[name] for name in names if base[name] > 0}
        for system, values in systems.items()
    }
