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

    An equal body alone is no retry: groups of equal requests are sampled on purpose. It takes a
    retry count, the same idempotency key, or a first reply that never arrived.
    """
    again = [
        attempt
        for attempt in attempts
        if attempt.request_hash == digest
        and now - attempt.created_at <= RETRY_WINDOW_S
        and (
            request.retry_count > 0
            or not attempt.delivered
            or (
                request.idempotency_key is not None
                and attempt.idempotency_key == request.idempotency_key
            )
        )
    ]
    return max(again, key=lambda attempt: attempt.created_at, default=None)
