"""The Responses API: replies that continue a stored one, and stored ones read by their id."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from msgspec.structs import replace
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from gateway.api.auth import authenticate
from gateway.api.endpoint import Endpoint, query_of
from gateway.api.exchange import Exchange
from gateway.api.inference import Inference
from gateway.api.logprobs import shown
from gateway.api.services import Services
from gateway.errors import PermissionDenied
from gateway.records import Conversation, Principal, Role, TurnRequest
from gateway.wire.json_body import invalid
from gateway.wire.openai_responses import (
    OpenAIResponses,
    continued,
    continues_stored,
    may_be_cut,
    referred,
    unknown_previous,
    unknown_response,
    with_items,
)
from gateway.wire.responses_ids import response_id, turn_of_response
from gateway.wire.responses_output import (
    Item,
    input_items,
    output_items,
    reply_of,
    stored_response,
)

#: codex sends this back within a turn of its user and expects it from every server.
_TURN_STATE = "x-codex-turn-state"
_STATE_CHARACTERS = 512

_PAGE = 20
_MOST = 100


def routes(services: Services) -> list[BaseRoute]:
    """Everything below `/v1/responses`."""
    dialect = OpenAIResponses(services.media)
    one = "/v1/responses/{response_id}"
    return [
        Route("/v1/responses", Responses(services, dialect), methods=["POST"]),
        Route(one, Retrieved(services, dialect), methods=["GET"]),
        Route(one, Deleted(services, dialect), methods=["DELETE"]),
        Route(f"{one}/input_items", InputItems(services, dialect), methods=["GET"]),
    ]


class Responses(Inference):
    """Serves `POST /v1/responses`."""

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        state = _turn_state(exchange)
        if state is not None:
            exchange.more_headers[_TURN_STATE] = state
        await super()._answer(exchange, scope)

    async def _request(self, exchange: Exchange, principal: Principal) -> TurnRequest:
        request = await self._whole_of(principal, await super()._request(exchange, principal))
        if may_be_cut(request):
            request = await self.services.pipeline.fitted(principal, request)
        return request

    async def _whole_of(self, principal: Principal, request: TurnRequest) -> TurnRequest:
        """Put in what the request only names: items of replies, and the conversation before it.

        Raises InvalidRequest or NotFound for what there is not, or what may not be read.
        """
        most = self.services.settings.gateway.max_messages
        request = await self._with_items(principal, request, most)
        turn_id = request.previous_turn
        if turn_id is None or not continues_stored(request):
            return request
        found = await self.services.conversations.find(
            principal.tenant_id, turn_id, self.dialect.name
        )
        if found is None:
            raise unknown_previous(response_id(turn_id))
        messages = continued(found.messages, request.messages)
        if len(messages) > most:
            raise invalid(
                "input",
                f"with what came before there are more than {most} messages",
                "array_above_max_length",
            )
        return replace(request, messages=messages)

    async def _with_items(
        self, principal: Principal, request: TurnRequest, most: int
    ) -> TurnRequest:
        turns = set(referred(request).values())
        if not turns:
            return request
        replies = await self.services.conversations.replies(
            principal.tenant_id, turns, self.dialect.name
        )
        items = {
            item["id"]: item
            for turn_id, reply in replies.items()
            for item in output_items(turn_id, reply_of(reply))
        }
        return with_items(request, items, most)


class Stored(Endpoint):
    """Answers for one stored response."""

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        principal = await authenticate(self.services.keys, exchange.headers)
        if principal.role is Role.ADMIN:
            raise PermissionDenied("An admin key cannot be used for inference.")
        body = await self._body(principal, scope["path_params"]["response_id"], query_of(scope))
        await exchange.answer(HTTPStatus.OK, msgspec.json.encode(body))

    @abstractmethod
    async def _body(self, principal: Principal, id_: str, query: Mapping[str, str]) -> object: ...

    async def _found(self, principal: Principal, id_: str) -> Conversation:
        turn_id = turn_of_response(id_)
        found = None
        if turn_id is not None:
            found = await self.services.conversations.find(
                principal.tenant_id, turn_id, self.dialect.name
            )
        if found is None:
            raise unknown_response(id_)
        return found


class Retrieved(Stored):
    """`GET /v1/responses/{id}`: what the request was answered with."""

    async def _body(self, principal: Principal, id_: str, query: Mapping[str, str]) -> object:
        if query.get("stream") == "true":
            raise invalid("stream", "only responses made in the background can be streamed")
        found = await self._found(principal, id_)
        if not found.sampled_ids:
            return stored_response(found)
        ids, values = found.sampled_ids, found.logprobs
        tokens = shown(self.services.tokenizer, ids, values, found.top)
        return stored_response(found, tokens)


class Deleted(Stored):
    """`DELETE /v1/responses/{id}`: it can be read and continued no more, but stays captured."""

    async def _body(self, principal: Principal, id_: str, query: Mapping[str, str]) -> object:  # noqa: ARG002 - it has none
        turn_id = turn_of_response(id_)
        conversations = self.services.conversations
        if turn_id is None or not await conversations.forget(
            principal.tenant_id, turn_id, self.dialect.name
        ):
            raise unknown_response(id_)
        return {"id": id_, "object": "response", "deleted": True}


class InputItems(Stored):
    """`GET /v1/responses/{id}/input_items`: what came before the reply, a page of it."""

    async def _body(self, principal: Principal, id_: str, query: Mapping[str, str]) -> object:
        limit = query.get("limit", str(_PAGE))
        if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= _MOST:
            raise invalid("limit", f"expected a number from 1 to {_MOST}")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("order", "supported values are 'asc' and 'desc'")
        items = input_items(await self._found(principal, id_))
        if order == "desc":
            items.reverse()
        return _page(items, int(limit), query.get("after"))


def _page(items: list[Item], limit: int, after: str | None) -> dict[str, object]:
    start = 0
    if after is not None:
        start = next((n for n, item in enumerate(items, 1) if item["id"] == after), -1)
        if start < 0:
            raise invalid("after", "there is no such item")
    page = items[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(items),
    }


def _turn_state(exchange: Exchange) -> str | None:
    """What codex is to send back: what it sent, else a word of ours. Other clients get none."""
    sent = exchange.headers.get(_TURN_STATE, "")
    if sent and sent.isascii() and sent.isprintable() and len(sent) <= _STATE_CHARACTERS:
        return sent
    return exchange.request_id.hex if "x-codex-window-id" in exchange.headers else None
