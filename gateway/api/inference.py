"""The endpoints that agents call, as raw ASGI: bytes in, frames out, nothing in between."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

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
from gateway.errors import ModelNotFound, NextstateError, PermissionDenied
from gateway.pipeline import Finished, Listener
from gateway.records import Principal, Role, TurnRequest
from gateway.store.pauses import Paused
from gateway.telemetry import bind
from gateway.telemetry.tracing import Context, of_client
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import TokenLogprob
from gateway.wire.openai_chat import OpenAIChat


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
        principal = await authenticate(services.keys, exchange.headers)
        if principal.role is Role.ADMIN:
            raise PermissionDenied("An admin key cannot be used for inference.")
        paused = services.pauses.is_paused(Paused.CAPTURE, principal.tenant_id)
        if paused or opted_out(exchange.headers):
            principal = replace(principal, capture=False)
        allowance = services.limiter.of(principal)
        if allowance.limited:
            exchange.more_headers |= allowance.headers()
        with Admission(allowance) as admission:
            if allowance.limited:
                exchange.more_headers |= allowance.headers()
            await self._serve(exchange, principal, admission)

    async def _serve(self, exchange: Exchange, principal: Principal, admission: Admission) -> None:
        services = self.services
        limits = services.settings.gateway
        body = await exchange.body(limits.max_body_bytes, limits.body_timeout_s)
        request = self.dialect.parse(body, exchange.headers, limits)
        if not served(services, request.model):
            raise ModelNotFound(request.model)
        request = await self._complete(principal, request)
        bind(tenant=principal.tenant, tenant_id=str(principal.tenant_id), key=principal.name)
        client = None if services.traces is None else of_client(exchange.headers.get("traceparent"))
        reply = self._stream if request.stream else self._whole
        await exchange.while_there(reply(exchange, principal, request, admission, client))

    async def _complete(self, principal: Principal, request: TurnRequest) -> TurnRequest:  # noqa: ARG002
        """What a request leaves to be looked up, if its dialect has such a thing."""
        return request

    async def _turns(
        self,
        principal: Principal,
        request: TurnRequest,
        admission: Admission,
        listener: Listener | None,
        client: Context | None,
    ) -> Finished:
        """Have a request served, its tokens counted where they are limited."""
        meter = admission.metered(listener)
        finished = await self.services.pipeline.serve_turn(
            principal, request, meter or listener, client
        )
        if meter is not None:
            meter.finished(finished)
        return finished

    async def _whole(
        self,
        exchange: Exchange,
        principal: Principal,
        request: TurnRequest,
        admission: Admission,
        client: Context | None,
    ) -> None:
        finished = await self._turns(principal, request, admission, None, client)
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
        body = encoder.whole(
            [one.reply for one in choices],
            [one.finish_reason for one in choices],
            finished.usage,
            logprobs,
            [one.stopped_by for one in choices],
        )
        headers = served_headers(finished)
        if choices[0].version is not None:
            headers["x-nextstate-policy-version"] = str(choices[0].version)
        await exchange.answer(HTTPStatus.OK, body, headers)

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
