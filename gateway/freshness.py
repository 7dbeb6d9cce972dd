"""How stale a sample is, and how many more may be opened before they would be too stale."""

from __future__ import annotations


def capacity(*, max_lag: int, batch: int, backlog: int, running: int) -> int:
    """(η + 1)·b - (backlog + running): trainable turns that may still be started.

    A version consumes `batch` samples (b), so a turn started now waits behind all that are in the
    backlog (turns with a next state and no verdict yet) or running, and is trained on by the
    version that many batches later. At or below 0 it could exceed η = `max_lag`.
    """
    return (max_lag + 1) * batch - (backlog + running)


def lag(live_version: int, version_min: int) -> int:
    """Versions between the one a step starts from and the oldest that sampled the turn."""
    return live_version - version_min


def is_stale(*, live_version: int, version_min: int, max_lag: int) -> bool:
    """Whether a sample is beyond η at the start of a step and so is dropped.

    One from a version that is not behind at all but ahead was sampled by a version since rolled
    back: it is no sample of this policy's past either.
    """
    return not 0 <= lag(live_version, version_min) <= max_lag
