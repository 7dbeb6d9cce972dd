"""Which requests ask again for a turn that was served already."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.records import Candidate, TurnRequest

#: How far back the first attempt may lie.
RETRY_WINDOW_S = 600.0


def retried(
    request: TurnRequest, digest: bytes, attempts: Iterable[Candidate], now: float
) -> Candidate | None:
    """The turn that this request asks for again, the latest of several, or None.

    An equal body alone is no retry: groups of equal requests are sampled on purpose. It takes the
    same idempotency key, a first reply that never arrived, or a retry count; a count alone does
    not say whose reply was lost, so it means no turn that went on, and none where several
    sessions asked the same.
    """
    recent = [
        attempt
        for attempt in attempts
        if attempt.request_hash == digest and now - attempt.created_at <= RETRY_WINDOW_S
    ]
    if not recent:
        return None
    key = request.idempotency_key
    again = [
        attempt
        for attempt in recent
        if not attempt.delivered or (key is not None and attempt.idempotency_key == key)
    ]
    if not again and request.retry_count > 0:
        again = [attempt for attempt in recent if not attempt.continued]
        if len({attempt.session_id for attempt in again}) > 1:
            return None
    return max(again, key=lambda attempt: attempt.created_at, default=None)
