"""The endpoint that counts a prompt's tokens without sampling any."""

from __future__ import annotations

from contextlib import nullcontext
from http import HTTPStatus

import msgspec
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint
from gateway.api.exchange import Exchange
from gateway.api.limits import Admission
from gateway.api.models import served
from gateway.api.services import Services
from gateway.errors import ModelNotFound, PermissionDenied
from gateway.records import Role, media_of
from gateway.telemetry import bind
from gateway.wire.anthropic_messages import AnthropicMessages

#: What asks no engine is not held to the limits of requests.
_FREE = nullcontext()


class TokenCount(Endpoint):
    """`POST /v1/messages/count_tokens`: the same rendering that the conversation would get."""

    def __init__(self, services: Services, dialect: AnthropicMessages) -> None:
        super().__init__(services, dialect)
        self._parse = dialect.parse_count

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:  # noqa: ARG002
        services = self.services
        principal = await authenticate(services.keys, exchange.headers)
        if principal.role is Role.ADMIN:
            raise PermissionDenied("An admin key cannot be used for inference.")
        bind(tenant=principal.tenant, tenant_id=str(principal.tenant_id), key=principal.name)
        limits = services.settings.gateway
        body = await exchange.body(limits.max_body_bytes, limits.body_timeout_s)
        request = self._parse(body, exchange.headers, limits)
        if not served(services, request.model):
            raise ModelNotFound(request.model)
        with Admission(services.limiter.of(principal)) if media_of(request.messages) else _FREE:
            count = await services.pipeline.count_tokens(principal, request)
        await exchange.answer(HTTPStatus.OK, msgspec.json.encode({"input_tokens": count}))
