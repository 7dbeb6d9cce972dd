"""When judging has gone wrong: figures beyond their thresholds, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from judge.config import AlarmConfig
from judge.health import Figure


def alarms(figures: Mapping[str, Figure], config: AlarmConfig) -> list[str]:
    """The names of the figures of `Health.report` that are beyond what is configured, in order."""
    return sorted(_raised(figures, config))


def _raised(figures: Mapping[str, Figure], config: AlarmConfig) -> Iterator[str]:
    def value(name: str, enough: str, times: int = 1) -> float | None:
        """A figure over at least `min_count` (or that many times) of what it is made of."""
        known = (figures.get(enough) or 0) >= times * config.min_count
        return figures.get(name) if known else None

    votes = figures.get("votes") or 0
    errors = figures.get("vote_errors") or 0
    highest: tuple[tuple[str, float | None, float | None], ...] = (
        ("disagreement", value("disagreement", "voted"), config.disagreement),
        ("parse_failures", value("parse_failures", "votes"), config.parse_failures),
        ("vote_errors", errors / votes if votes >= config.min_count else None, config.vote_errors),
        ("ms_p95", value("ms_p95", "judgements"), config.p95_ms),
        # Both halves must be large enough to be compared.
        ("score_drift", _size(value("score_drift", "judgements", 2)), config.score_drift),
        ("settled_drift", _size(value("settled_drift", "judgements", 2)), config.settled_drift),
    )
    for name, found, limit in highest:
        if found is not None and limit is not None and found > limit:
            yield name
    lowest: tuple[tuple[str, float | None, float | None], ...] = (
        ("feedback_kappa", value("feedback_kappa", "feedback_checked"), config.feedback_kappa),
        ("audit_kappa", value("audit_kappa", "audit_checked"), config.audit_kappa),
    )
    for name, found, limit in lowest:
        if found is not None and limit is not None and found < limit:
            yield name


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)
