"""The endpoint that counts a prompt's tokens without sampling any."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
import structlog
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint, served
from gateway.api.exchange import Exchange
from gateway.api.services import Services
from gateway.errors import ModelNotFound, PermissionDenied
from gateway.records import Role
from gateway.wire.anthropic_messages import AnthropicMessages


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
        structlog.contextvars.bind_contextvars(tenant=principal.tenant, key=principal.name)
        limits = services.settings.gateway
        body = await exchange.body(limits.max_body_bytes)
        request = self._parse(body, exchange.headers, limits)
        if not served(services, request.model):
            raise ModelNotFound(request.model)
        count = await services.pipeline.count_tokens(request)
        await exchange.answer(HTTPStatus.OK, msgspec.json.encode({"input_tokens": count}))
