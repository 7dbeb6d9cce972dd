"""The admin REST API for the rules that tell main line from side calls, the same for all tenants.

The rules in force are those of the settings file with the stored ones over them; gateways and
judges hear of a change at once.
"""

import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, JsonValue, StringConstraints

from gateway.api import shapes
from gateway.api.admin_access import asker, change, is_operator, operator
from gateway.api.admin_answer import answer, expected
from gateway.api.admin_query import NO_NUL, Body, Id, IfMatch
from gateway.api.services import Services
from gateway.classify import Awareness
from gateway.config import SessionSettings
from gateway.errors import ConfigError, InvalidRequest, PermissionDenied, PreconditionFailed
from gateway.pipeline.place import Place, Placer
from gateway.records import Principal, Role
from gateway.store.awareness import AWARENESS, CHANGEABLE, overlaid
from gateway.store.key_records import KeyRecords
from gateway.store.settings import SettingStore
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import Dialect
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.openai_completions import OpenAICompletions
from gateway.wire.openai_responses import OpenAIResponses

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_NUL)]
Patterns = Annotated[list[Pattern], Field(max_length=100)]
Spoken = Literal["chat", "completions", "responses", "messages"]
Header = Annotated[str, StringConstraints(max_length=200)]


class Rules(Body):
    """What is not named is as the settings file has it."""

    session_timeout_s: float | None = Field(None, gt=0, le=10**9, allow_inf_nan=False)
    trainable_patterns: Patterns | None = None
    auxiliary_patterns: Patterns | None = None

    def value(self) -> dict[str, Any]:
        """What is stored."""
        return self.model_dump(exclude_none=True)


class Sample(Body):
    """A request as an agent would send it, and the rules to try; by default those in force.

    `key_id` is the key that it would come with: without one, only the sessions that it names are
    looked for.
    """

    dialect: Spoken = "chat"
    headers: Annotated[dict[Header, Header], Field(max_length=64)] = Field(default_factory=dict)
    body: dict[str, JsonValue]
    key_id: Id | None = None
    rules: Rules | None = None


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/rules", tags=["rules"])
    store = SettingStore(services.database)
    records = KeyRecords(services.database, services.keys)
    dialects: dict[str, Dialect] = {
        "chat": OpenAIChat(services.media),
        "completions": OpenAICompletions(),
        "responses": OpenAIResponses(services.media),
        "messages": AnthropicMessages(services.media),
    }
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Operator = Annotated[Principal, Depends(operator(services))]  # noqa: N806

    async def standing() -> tuple[dict[str, Any], int]:
        stored = await store.get(AWARENESS)
        value = dict(stored.value) if stored else {}
        version = stored.version if stored else 0
        return _shown(value, version, overlaid(services.rules.said, value)), version

    @router.get("", responses=shapes.ok(shapes.Rules))
    async def rules(request: Request, who: Admin) -> Response:  # noqa: ARG001 - it is asked who
        """The rules in force, and which of them are stored over the settings file's."""
        found, _ = await standing()
        return answer(request, found)

    @router.put("", responses=shapes.ok(shapes.Rules))
    async def put_rules(
        request: Request,
        who: Operator,
        body: Rules,
        if_match: IfMatch = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Store rules over the settings file's, in place of what was stored. 400 for wrong ones."""
        found, version = await standing()
        expected(request)(found)
        value = body.value()
        effective = _checked(services.rules.said, value)
        wanted = change(who, "rules_changed", AWARENESS, version=version + 1)
        put = await store.put(AWARENESS, value, seen=version, change=wanted)
        if put is None:
            raise PreconditionFailed("The rules were changed meanwhile: read them again.")
        return answer(request, _shown(value, put, effective))

    @router.post("/test", responses=shapes.ok(shapes.Classified))
    async def try_rules(request: Request, who: Admin, body: Sample) -> Response:
        """Say where a request would belong and what it would be. Nothing is served or stored.

        Other rules than those in force are tried by operators alone.
        """
        settings = services.awareness.settings
        if body.rules is not None:
            # An expression may be one that takes hours for a short text, of all tenants' time.
            if not is_operator(services, who):
                raise PermissionDenied("Only an operator's admin key may try other rules.")
            settings = _checked(services.rules.said, body.rules.value())
        headers = {name.lower(): value for name, value in body.headers.items()}
        try:
            raw = msgspec.json.encode(body.body)
        except UnicodeEncodeError:
            raise InvalidRequest("half a surrogate pair is no text", param="body") from None
        parsed = dialects[body.dialect].parse(raw, headers, services.settings.gateway)
        asked_by = who
        if body.key_id is not None:
            key = await records.one(who.tenant_id, body.key_id)
            asked_by = replace(
                who, key_id=key["id"], lineage_id=key["lineage_id"], role=Role(key["role"])
            )
        placer = Placer(services.settings, services.turns, Awareness(settings))
        return answer(request, _told(await placer.place(asked_by, parsed, time.time())))

    return router


def _checked(said: SessionSettings, value: dict[str, Any]) -> SessionSettings:
    """The rules that a value makes of the file's. Raises InvalidRequest."""
    try:
        effective = overlaid(said, value)
        Awareness(effective)
    except ConfigError as error:
        raise InvalidRequest(error.message) from None
    return effective


def _shown(value: dict[str, Any], version: int, effective: SessionSettings) -> dict[str, Any]:
    return {
        "version": version,
        "stored": value,
        "in_force": {name: getattr(effective, name) for name in CHANGEABLE},
    }


def _told(place: Place) -> dict[str, Any]:
    """A decision as it would be stored with the turn."""
    resolution, parent = place.resolution, place.resolution.parent
    return {
        "kind": place.kind.kind.value,
        "kind_rule": place.kind.rule,
        "confidence": place.kind.confidence,
        "session_id": resolution.session_id,
        "resolve_rule": resolution.rule,
        "ambiguous": resolution.ambiguous,
        "branch_reason": resolution.branch_reason,
        "parent_id": parent.turn_id if parent else None,
        "retry_of": place.retry_of,
        "rolled_back": place.rolled_back,
    }
