"""The models that are served, in the form that the client's own API has."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint, query_of
from gateway.api.exchange import Exchange
from gateway.api.services import Services
from gateway.errors import ModelNotFound
from gateway.wire.anthropic_errors import VERSION_HEADER
from gateway.wire.base import Dialect
from gateway.wire.model_cards import anthropic_card, anthropic_list, openai_card, openai_list


class Models(Endpoint):
    """The policy under its own name and those aliases that are names."""

    def __init__(self, services: Services, dialect: Dialect, anthropic: Dialect) -> None:
        super().__init__(services, dialect)
        self._anthropic = anthropic

    def dialect_of(self, headers: Mapping[str, str]) -> Dialect:
        return self._anthropic if VERSION_HEADER in headers else self.dialect

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        await authenticate(self.services.keys, exchange.headers)
        marked = VERSION_HEADER in exchange.headers
        wanted = scope["path_params"].get("model")
        if wanted is not None:
            if not served(self.services, wanted):
                raise ModelNotFound(wanted)
            body = anthropic_card(wanted) if marked else openai_card(wanted)
        else:
            model = self.services.settings.model
            names = [model.name, *(name for name in model.aliases if name != "*")]
            body = anthropic_list(names, query_of(scope)) if marked else openai_list(names)
        await exchange.answer(HTTPStatus.OK, msgspec.json.encode(body))


def served(services: Services, model: str) -> bool:
    """Whether a model's name, or an alias, or the alias `*`, means the policy."""
    named = services.settings.model
    return model == named.name or model in named.aliases or "*" in named.aliases
