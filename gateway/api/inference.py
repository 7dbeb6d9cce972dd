"""The endpoints that agents call, as raw ASGI: bytes in, frames out, nothing in between."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint
from gateway.api.exchange import Exchange
from gateway.api.limits import Admission
from gateway.api.logprobs import shown
from gateway.api.models import Models, served
from gateway.api.opt_out import opted_out
from gateway.api.served_headers import served_headers
from gateway.api.services import Services
from gateway.api.streamed import StreamedReply
from gateway.api.token_count import TokenCount
from gateway.api.while_there import WhileThere
from gateway.errors import ModelNotFound, NextstateError, PermissionDenied
from gateway.pipeline import Finished, Listener
from gateway.records import Principal, Role, TurnRequest
from gateway.store.pauses import Paused
from gateway.telemetry import bind
from gateway.telemetry.tracing import Context, of_client
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import TokenLogprob
from gateway.wire.openai_chat import OpenAIChat

#: Read once: members of an enum are looked up by a call.
_OK = HTTPStatus.OK


def routes(services: Services) -> list[BaseRoute]:
    """One endpoint a dialect, and the list of models."""
    chat, messages = OpenAIChat(services.media), AnthropicMessages(services.media)
    models = Models(services, chat, messages)
    return [
        Route("/v1/chat/completions", Inference(services, chat), methods=["POST"]),
        Route("/v1/messages", Inference(services, messages), methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCount(services, messages), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", models, methods=["GET"]),
    ]


class Inference(Endpoint):
    """Serves one dialect's completions."""

    operation = "generate"

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:  # noqa: ARG002
        services = self.services
        principal = await self._principal(exchange.headers)
        allowance = services.limiter.of(principal)
        admission = Admission(allowance)
        if admission.counts:
            exchange.more_headers |= allowance.headers()
        with admission:
            if admission.counts:
                exchange.more_headers |= allowance.headers()
            request = await self._request(exchange, principal)
            bind(tenant=principal.tenant, tenant_id=str(principal.tenant_id), key=principal.name)
            traced = services.traces is not None
            client = of_client(exchange.headers.get("traceparent")) if traced else None
            with WhileThere(exchange):
                if request.stream:
                    await self._stream(exchange, principal, request, admission, client)
                else:
                    finished = await self._turns(principal, request, admission, None, client)
                    await self._whole(exchange, request, finished)

    async def _principal(self, headers: Mapping[str, str]) -> Principal:
        """Who asks, and whether what is served is captured."""
        principal = await authenticate(self.services.keys, headers)
        if principal.role is Role.ADMIN:
            raise PermissionDenied("An admin key cannot be used for inference.")
        paused = self.services.pauses.is_paused(Paused.CAPTURE, principal.tenant_id)
        if paused or opted_out(headers):
            principal = replace(principal, capture=False)
        return principal

    async def _request(self, exchange: Exchange, principal: Principal) -> TurnRequest:  # noqa: ARG002
        """What is asked for; dialects that leave something to be looked up put that in."""
        limits = self.services.settings.gateway
        body = await exchange.body(limits.max_body_bytes, limits.body_timeout_s)
        request = self.dialect.parse(body, exchange.headers, limits)
        if not served(self.services, request.model):
            raise ModelNotFound(request.model)
        return request

    def _turns(
        self,
        principal: Principal,
        request: TurnRequest,
        admission: Admission,
        listener: Listener | None,
        client: Context | None,
    ) -> Coroutine[Any, Any, Finished]:
        """Have a request served, its tokens counted where they are limited."""
        meter = admission.metered(listener) if admission.counts else None
        turn = self.services.pipeline.serve_turn(principal, request, meter or listener, client)
        return turn if meter is None else meter.serving(turn)

    async def _whole(self, exchange: Exchange, request: TurnRequest, finished: Finished) -> None:
        encoder = self.dialect.encoder(
            request, finished.turn_id, int(finished.created_at), request.model
        )
        choices = finished.choices
        logprobs: list[list[TokenLogprob]] = []
        if request.top_logprobs is not None:
            # An engine of text has no ids, and needs no tokenizer here.
            logprobs = [
                shown(self.services.tokenizer, one.sampled_ids, one.logprobs, one.top)
                if one.sampled_ids
                else []
                for one in choices
            ]
        replies, reasons, stops = [], [], []
        for one in choices:
            replies.append(one.reply)
            reasons.append(one.finish_reason)
            stops.append(one.stopped_by)
        body = encoder.whole(replies, reasons, finished.usage, logprobs, stops)
        headers = served_headers(finished)
        version = choices[0].version
        if version is not None:
            headers.append((b"x-nextstate-policy-version", b"%d" % version))
        await exchange.answer(_OK, body, headers)

    async def _stream(
        self,
        exchange: Exchange,
        principal: Principal,
        request: TurnRequest,
        admission: Admission,
        client: Context | None,
    ) -> None:
        reply = StreamedReply(self.services, self.dialect, exchange, request)
        try:
            finished = await self._turns(principal, request, admission, reply, client)
            await reply.finish(finished)
        except NextstateError as error:
            if not exchange.begun:
                raise
            await reply.fail(error)
        finally:
            reply.close()
