"""Spans to a collector by the OpenTelemetry SDK. Loaded only where traces are wanted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

#: Trace and span.
Ids = tuple[int, int]

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
#: Spans that come within this time are sent together.
_PAUSE_MS = 1000
#: For one batch of spans.
_TIMEOUT_S = 5.0


class _Wanted(IdGenerator):
    """The ids that the next span of this thread is to have, else random ones."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._wanted = threading.local()

    def want(self, ids: Ids | None) -> None:
        self._wanted.ids = ids

    def generate_trace_id(self) -> int:
        return self._next(0) or self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        return self._next(1) or self._random.generate_span_id()

    def _next(self, place: int) -> int:
        ids: Ids | None = getattr(self._wanted, "ids", None)
        return 0 if ids is None else ids[place]


class _Staying(requests.Session):
    """Asks the collector that is configured and nobody it points to: headers hold secrets."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002
        return None


class Exporter:
    """A tracer of this process's own: nothing global is set, and no other library's spans come."""

    def __init__(self, url: str, headers: Mapping[str, str], service: str) -> None:
        self._ids = _Wanted()
        resource = {"service.name": service, "service.version": version("nextstate")}
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(resource),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            url, headers=dict(headers) or None, timeout=_TIMEOUT_S, session=_Staying()
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=_PAUSE_MS)
        )
        self._tracer = self._provider.get_tracer("nextstate")

    def export(
        self,
        name: str,
        *,
        wanted: Ids | None,
        parent: Ids | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        links: Sequence[Ids],
        error: str | None,
        kind: str,
    ) -> Ids:
        """Queue a span that is over; a full queue drops it. Never waits."""
        around = Context()
        if parent is not None:
            around = set_span_in_context(NonRecordingSpan(_remote(parent)), around)
        self._ids.want(wanted)
        try:
            span = self._tracer.start_span(
                name,
                around,
                kind=SpanKind[kind],
                attributes=attributes,
                links=[Link(_remote(ids)) for ids in links],
                start_time=start_ns,
            )
        finally:
            self._ids.want(None)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)
        own = span.get_span_context()
        return own.trace_id, own.span_id

    def close(self, grace_s: float) -> None:
        """Send what waits, at most for so long."""
        # The SDK would wait for a collector that hangs longer than a process may take to end.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(grace_s)


def _remote(ids: Ids) -> SpanContext:
    return SpanContext(*ids, is_remote=True, trace_flags=_SAMPLED)
