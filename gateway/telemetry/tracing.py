"""OpenTelemetry traces: what each turn went through, in every process, as one trace.

The id of a turn is the id of its trace, and its lower half that of the trace's first span. So a
judge or a trainer that takes the turn up hours later adds its spans without anything having been
stored for it, and all processes sample the same turns.

A client that sends `traceparent` (W3C) has the serving of its turn in its own trace as well; that
span and the turn's first one are linked. Engines are told of the trace that serving stands in.

The SDK is loaded only where `tracing.endpoint` is set; spans are made of what was measured anyway,
once a turn is stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.config import TracingSettings

_PATH = "/v1/traces"
_HALF = (1 << 64) - 1
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
#: How long the end of a process waits for its last spans to be taken.
_GRACE_S = 5.0

Attributes = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Context:
    """A span elsewhere: `trace` of 128 bits, `span` of 64."""

    trace: int
    span: int

    @property
    def traceparent(self) -> str:
        """As the W3C header, sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


def of_turn(turn_id: UUID) -> Context:
    """The first span of a turn's trace."""
    return Context(turn_id.int, turn_id.int & _HALF)


def generating(serving: Context) -> Context:
    """The span of what is asked of the engine, below the span of serving."""
    return Context(serving.trace, serving.span ^ 1)


def of_client(header: str | None) -> Context | None:
    """What a client's `traceparent` names; None where it is not one, or not sampled."""
    found = _PARENT.fullmatch(header or "")
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found.groups())
    return Context(trace, span) if trace and span and flags & _SAMPLED else None


class Traces:
    """Where the spans of this process go: a bounded queue that a thread empties."""

    def __init__(self, settings: TracingSettings, component: str) -> None:
        """Raises ConfigError where the SDK is not installed."""
        try:
            from gateway.telemetry import otlp
        except ImportError as error:
            raise ConfigError(
                f"tracing.endpoint needs the packages of nextstate[tracing]: {error}"
            ) from None
        url = (settings.endpoint or "").rstrip("/")
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        self._otlp = otlp.Exporter(
            url if url.endswith(_PATH) else url + _PATH, headers, f"nextstate-{component}"
        )
        # A share of the ids' lower halves, which are random.
        self._below = round(settings.sample * (_HALF >> 2))

    @classmethod
    def configured(cls, settings: TracingSettings, component: str) -> Self | None:
        """None where nothing is to be traced."""
        return None if settings.endpoint is None else cls(settings, component)

    async def close(self) -> None:
        """Send what waits, within a few seconds."""
        await asyncio.to_thread(self._otlp.close, _GRACE_S)

    def samples(self, turn_id: UUID) -> bool:
        """Whether a turn is traced."""
        # The two upmost bits of the half are the same in every UUID.
        return (turn_id.int & (_HALF >> 2)) < self._below

    def serving(self, turn_id: UUID, client: Context | None) -> Context | None:
        """The span under which a turn is served: in its client's trace where there is one."""
        if client is not None:
            return Context(client.trace, turn_id.int & _HALF)
        return of_turn(turn_id) if self.samples(turn_id) else None

    def span(
        self,
        name: str,
        context: Context | None,
        *,
        parent: Context | None,
        start: float,
        end: float,
        attributes: Attributes,
        links: tuple[Context, ...] = (),
        error: str | None = None,
        kind: str = "INTERNAL",
    ) -> Context:
        """A span that is over, by the clock's seconds; without a `context` it gets one of its own.

        Values that are None are left out. `error` says that it failed, and how.
        """
        known: Mapping[str, Any] = {
            key: value for key, value in attributes.items() if value is not None
        }
        trace, span = self._otlp.export(
            name,
            wanted=None if context is None else (context.trace, context.span),
            parent=None if parent is None else (parent.trace, parent.span),
            start_ns=int(start * 1e9),
            end_ns=int(end * 1e9),
            attributes=known,
            links=[(link.trace, link.span) for link in links],
            error=error,
            kind=kind,
        )
        return Context(trace, span)
