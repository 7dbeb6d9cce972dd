"""What a gateway counts as it serves, as Prometheus metrics in a registry of the caller's.

Each series is moved once a request or a turn, never once a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.series import Counts, Spread

if TYPE_CHECKING:
    from gateway.records import TurnRecord

_LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
#: Reasons told apart; an engine may word its own.
_MOST_REASONS = 64

_PROMPT, _CACHED, _COMPLETION = ("prompt",), ("cached",), ("completion",)
_OTHER = ("other",)

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)


class ServingMetrics(Collector):
    """Counts of one gateway process, whose one thread that serves moves them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counts(
            "nextstate_gateway_requests",
            "Requests answered, by dialect, whether a reply or a stored thing was asked for, and "
            "HTTP status (499: the client left).",
            ("dialect", "operation", "status"),
        )
        self._seconds = Spread(
            "nextstate_gateway_request_seconds",
            "Time from the arrival of a request to its last byte.",
            ("dialect", "operation"),
            _LATENCY_S,
        )
        self._broken = Counts(
            "nextstate_gateway_streams_broken",
            "Streams that had begun and ended in an error.",
            ("dialect",),
        )
        self._first_token = Spread(
            "nextstate_gateway_first_token_seconds",
            "Time from the arrival of a request to the first token of a choice.",
            ("dialect",),
            _FIRST_TOKEN_S,
        )
        self._tokens = Counts(
            "nextstate_gateway_tokens",
            "Tokens of turns: prompt, of it cached, and completion.",
            ("kind",),
        )
        self._turns = Counts(
            "nextstate_gateway_turns",
            "Turns stored or spooled, by kind and whether they may be trained on.",
            ("kind", "trainable"),
        )
        self._untrainable = Counts(
            "nextstate_gateway_turns_untrainable",
            "Turns that no gradient may come from, by reason.",
            ("reason",),
        )
        self._mismatches = Counts(
            "nextstate_gateway_stream_mismatches",
            "Turns whose stream differs from the reply parsed from all its ids.",
        )
        self._uncaptured = Counts(
            "nextstate_gateway_turns_uncaptured",
            "Turns served without being stored, because the key is not captured.",
        )
        self._lost = Counts(
            "nextstate_gateway_records_lost",
            "Calls whose records neither Postgres nor the spool took.",
        )
        for kind in (_PROMPT, _CACHED, _COMPLETION):
            self._tokens[kind] = 0
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Every series as it is now."""
        counts = (
            self._requests,
            self._seconds,
            self._broken,
            self._first_token,
            self._tokens,
            self._turns,
            self._untrainable,
            self._mismatches,
            self._uncaptured,
            self._lost,
        )
        return [one.family() for one in counts]

    def answered(self, dialect: str, operation: str, status: int, seconds: float) -> None:
        """A request is over."""
        self._requests[dialect, operation, status] += 1
        self._seconds.observe((dialect, operation), seconds)

    def broken(self, dialect: str) -> None:
        """A stream ended in an error: its status had been sent, and was 200."""
        self._broken[(dialect,)] += 1

    def served(self, turn: TurnRecord) -> None:
        """A choice has ended, whether it is stored or not."""
        first_ms = turn.timings.first_token_ms
        if first_ms is not None:
            self._first_token.observe((turn.dialect,), first_ms / 1e3)
        usage = turn.usage
        self._tokens[_PROMPT] += usage.prompt_tokens
        self._tokens[_COMPLETION] += usage.completion_tokens
        if usage.cached_tokens:
            self._tokens[_CACHED] += usage.cached_tokens

    def stored(self, turn: TurnRecord) -> None:
        """A turn is durable."""
        self._turns[turn.kind, "yes" if turn.trainable else "no"] += 1
        if turn.untrainable_reason is not None:
            reason = (turn.untrainable_reason,)
            known = self._untrainable
            if reason not in known and len(known) >= _MOST_REASONS:
                reason = _OTHER
            known[reason] += 1
        if turn.stream_mismatch:
            self._mismatches[()] += 1

    def uncaptured(self) -> None:
        """A turn was served to a key whose calls are not stored."""
        self._uncaptured[()] += 1

    def lost(self) -> None:
        """What a call told was stored nowhere."""
        self._lost[()] += 1
