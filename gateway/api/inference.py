"""The endpoints that agents call, as raw ASGI: bytes in, frames out, nothing in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from http import HTTPStatus

import structlog
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint, Models, served
from gateway.api.exchange import Exchange
from gateway.api.limits import Admission
from gateway.api.services import Services
from gateway.api.token_count import TokenCount
from gateway.errors import ModelNotFound, NextstateError, PermissionDenied
from gateway.pipeline import Ended, Event, Finished, Piece, Started
from gateway.records import Principal, Ranked, Role, TurnRequest
from gateway.telemetry import get_logger
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import Encoder, TokenLogprob
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.sse import COMMENT

log = get_logger(__name__)

_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Reverse proxies would otherwise collect the stream before they pass it on.
    (b"x-accel-buffering", b"no"),
)


def routes(services: Services) -> list[BaseRoute]:
    """One endpoint a dialect, and the list of models."""
    chat, messages = OpenAIChat(), AnthropicMessages()
    return [
        Route("/v1/chat/completions", Inference(services, chat), methods=["POST"]),
        Route("/v1/messages", Inference(services, messages), methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCount(services, messages), methods=["POST"]),
        Route("/v1/models", Models(services, chat), methods=["GET"]),
        Route("/v1/models/{model:path}", Models(services, chat), methods=["GET"]),
    ]


class Inference(Endpoint):
    """Serves one dialect's completions."""

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:  # noqa: ARG002
        services = self.services
        principal = await authenticate(services.keys, exchange.headers)
        if principal.role is Role.ADMIN:
            raise PermissionDenied("An admin key cannot be used for inference.")
        allowance = services.limiter.of(principal)
        exchange.more_headers |= allowance.headers()
        with Admission(allowance) as admission:
            exchange.more_headers |= allowance.headers()
            await self._serve(exchange, principal, admission)

    async def _serve(self, exchange: Exchange, principal: Principal, admission: Admission) -> None:
        services = self.services
        limits = services.settings.gateway
        body = await exchange.body(limits.max_body_bytes)
        request = self.dialect.parse(body, exchange.headers, limits)
        if not served(services, request.model):
            raise ModelNotFound(request.model)
        request = await self._complete(principal, request)
        structlog.contextvars.bind_contextvars(tenant=principal.tenant, key=principal.name)
        reply = self._stream if request.stream else self._whole
        async with aclosing(services.pipeline.serve_turn(principal, request)) as events:
            await exchange.while_there(reply(exchange, request, admission.metered(events)))

    async def _complete(self, principal: Principal, request: TurnRequest) -> TurnRequest:  # noqa: ARG002
        """What a request leaves to be looked up, if its dialect has such a thing."""
        return request

    async def _whole(
        self, exchange: Exchange, request: TurnRequest, events: AsyncGenerator[Event, None]
    ) -> None:
        async for event in events:
            if isinstance(event, Finished):
                encoder = self.dialect.encoder(
                    request, event.turn_id, int(event.created_at), request.model
                )
                choices = event.choices
                logprobs = [
                    self._shown(request, one.sampled_ids, one.logprobs, one.top) for one in choices
                ]
                body = encoder.whole(
                    [one.reply for one in choices],
                    [one.finish_reason for one in choices],
                    event.usage,
                    logprobs if request.top_logprobs is not None else (),
                    [one.stopped_by for one in choices],
                )
                headers = _headers(event)
                if choices[0].version is not None:
                    headers["x-nextstate-policy-version"] = str(choices[0].version)
                await exchange.answer(HTTPStatus.OK, body, headers)

    async def _stream(
        self, exchange: Exchange, request: TurnRequest, events: AsyncGenerator[Event, None]
    ) -> None:
        stream = EventStream(exchange, self.services.settings.gateway.keepalive_comment_s)
        encoder: Encoder | None = None
        running, last = request.choices, b""
        unsent: list[list[TokenLogprob]] = [[] for _ in range(request.choices)]
        try:
            async for event in events:
                if isinstance(event, Started):
                    encoder = self.dialect.encoder(
                        request, event.turn_id, int(event.created_at), request.model
                    )
                    await stream.open(_headers(event))
                    await stream.write(encoder.start(event.prompt_tokens))
                    continue
                assert encoder is not None, "a turn begins with Started"
                if isinstance(event, Piece):
                    choice = event.choice
                    unsent[choice] += self._shown(request, event.ids, event.logprobs, event.top)
                    frames = b""
                    for delta in event.deltas:
                        frames += encoder.delta(choice, delta, unsent[choice])
                        unsent[choice] = []
                    await stream.write(frames)
                elif isinstance(event, Ended):
                    last = encoder.finish(event.choice, event.finish_reason, event.stopped_by)
                    running -= 1
                    if running:
                        await stream.write(last)
                else:
                    await stream.end(last + encoder.end(event.usage))
        except NextstateError as error:
            if not exchange.begun:
                raise
            log.warning("stream_broken", error=type(error).__name__, why=error.message)
            encoder = encoder or self.dialect.encoder(
                request, exchange.request_id, int(time.time()), request.model
            )
            await stream.end(encoder.error_event(error))
        finally:
            stream.close()

    def _shown(
        self,
        request: TurnRequest,
        ids: Sequence[int],
        logprobs: Sequence[float],
        top: Sequence[Ranked],
    ) -> list[TokenLogprob]:
        """Log-probabilities as the client sees them, if it asked."""
        if request.top_logprobs is None:
            return []
        # An engine that loses one is found out at the end; until then what there is is shown.
        places = top or [()] * len(ids)
        return [
            self._token(id_, value, tuple(self._token(*other) for other in others))
            for id_, value, others in zip(ids, logprobs, places, strict=False)
        ]

    def _token(self, id_: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        tokenizer = self.services.tokenizer
        return TokenLogprob(
            text=tokenizer.decode([id_]), raw=tokenizer.bytes_of(id_), logprob=logprob, top=top
        )


class EventStream:
    """The body of a streamed reply; comment lines fill silences longer than `silence_s`.

    Proxies cut streams that say nothing. If the first token takes that long, the response begins
    without it, and what fails later is an event of the stream.
    """

    def __init__(self, exchange: Exchange, silence_s: float) -> None:
        self._exchange = exchange
        self._silence_s = silence_s
        self._written = time.monotonic()
        self._keeper = asyncio.create_task(self._keep_alive())

    async def open(self, headers: dict[str, str]) -> None:
        if not self._exchange.begun:
            given = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._exchange.begin(HTTPStatus.OK, [*_SSE, *given])

    async def write(self, frames: bytes) -> None:
        if frames:
            self._written = time.monotonic()
            await self._exchange.write(frames, more=True)

    async def end(self, frames: bytes) -> None:
        self.close()
        await self._exchange.write(frames)

    def close(self) -> None:
        self._keeper.cancel()

    async def _keep_alive(self) -> None:
        while True:
            silent = time.monotonic() - self._written
            if silent >= self._silence_s:
                await self.open({})
                await self.write(COMMENT)
                silent = 0.0
            await asyncio.sleep(self._silence_s - silent)


def _headers(event: Started | Finished) -> dict[str, str]:
    return {
        "x-nextstate-turn-id": str(event.turn_id),
        "x-nextstate-session-id": str(event.session_id),
    }
