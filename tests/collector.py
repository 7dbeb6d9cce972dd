"""A collector of OpenTelemetry spans: OTLP over HTTP, as the SDK sends them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, kw_only=True)
class Span:
    """What arrived of one span. Ids are in hexadecimal digits, times in nanoseconds."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: bool


@dataclass
class Collector:
    """Use as an async context manager; `url` is the endpoint."""

    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes([web.post("/v1/traces", self._take)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def of(self, trace: str) -> list[Span]:
        """The spans of one trace, as they began."""
        return sorted((one for one in self.spans if one.trace == trace), key=lambda one: one.start)

    async def until(self, trace: str, names: set[str]) -> list[Span]:
        """The spans of a trace, once these are among them."""
        async with asyncio.timeout(60):
            while not names <= {one.name for one in self.of(trace)}:
                await asyncio.sleep(0.05)
        return self.of(trace)

    async def _take(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(_span(span, about["service.name"]))
        return web.Response(content_type="application/x-protobuf")


def _span(span: Any, service: str) -> Span:
    return Span(
        name=span.name,
        service=service,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes={
            one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes
        },
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        failed=span.status.code == 2,
    )
