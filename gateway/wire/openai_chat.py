"""The dialect of `POST /v1/chat/completions`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest, NextstateError
from gateway.records import Sampling, TurnRequest
from gateway.wire.chat_encoder import ChatEncoder, error_body
from gateway.wire.chat_messages import checked_messages, checked_tools
from gateway.wire.chat_tool_choice import checked_choice
from gateway.wire.clients import caller
from gateway.wire.json_body import JsonBody, check_depth, invalid, unsupported
from gateway.wire.outcome import outcome_of

N = TypeVar("N", int, float, int | None, float | None)

_MOST_TOOLS = 512
_MOST_STOPS = 4
_MOST_CHOICES = 8
_MOST_TOP_LOGPROBS = 20
_STOP_CHARACTERS = 1_000
_MODEL_CHARACTERS = 256
_LARGEST_INT = 2**63 - 1
#: Names that rendering gives to templates itself.
_RESERVED = ("messages", "tools", "add_generation_prompt")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    """The fields that mean something here; all others are ignored."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: _ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    modalities: list[str] | None = None
    user: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OpenAIChat:
    """Requests and replies of the chat completions API.

    The old `functions` are refused in so many words rather than served in part.
    """

    name = "openai_chat"

    def __init__(self) -> None:
        self._json = JsonBody(_Body)

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        asked: _Body = self._json.decode(body)
        who = caller(headers, limits.max_id_bytes)
        if not asked.model or len(asked.model) > _MODEL_CHARACTERS:
            raise invalid("model", f"expected 1 to {_MODEL_CHARACTERS} characters")
        choices = 1 if asked.n is None else _between("n", asked.n, 1, _MOST_CHOICES)
        stream = bool(asked.stream)
        if asked.stream_options is not None and not stream:
            raise invalid("stream_options", "only allowed when 'stream' is true")
        if "audio" in (asked.modalities or ()):
            raise unsupported("modalities", "This model does not speak.")
        if asked.functions:
            raise unsupported("functions", "'functions' is not supported; use 'tools'.")
        tools = checked_tools(asked.tools or (), _MOST_TOOLS)
        tool_choice, allowed = checked_choice(asked.tool_choice, tools)
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=checked_messages(asked.messages, limits.max_messages),
            sampling=_sampling(asked),
            tools=tools,
            stream=stream,
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            tool_choice=tool_choice,
            allowed_tools=allowed,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            choices=choices,
            top_logprobs=_top_logprobs(asked),
            session_name=who.session_name,
            parent_session_name=who.parent_session_name,
            marker=who.marker,
            declared_kind=who.declared_kind,
            turn_type=who.turn_type,
            session_done=who.session_done,
            retry_count=who.retry_count,
            idempotency_key=who.idempotency_key,
            user=asked.user,
            client=who.client,
            template_kwargs=_template_kwargs(asked),
        )

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> ChatEncoder:
        return ChatEncoder(request, response_id, created, model)

    def error(
        self,
        error: NextstateError,
        request_id: UUID | None = None,  # noqa: ARG002 - a header says it
    ) -> tuple[int, dict[str, str], bytes]:
        outcome = outcome_of(error)
        return outcome.status, dict(outcome.headers), error_body(error)


def _sampling(asked: _Body) -> Sampling:
    limit = asked.max_completion_tokens
    named = "max_completion_tokens"
    if limit is None:
        limit, named = asked.max_tokens, "max_tokens"
    if asked.top_p is not None and not 0 < asked.top_p <= 1:
        raise invalid("top_p", "expected a number above 0 and at most 1")
    if asked.repetition_penalty is not None and not 0 < asked.repetition_penalty <= 2:
        raise invalid("repetition_penalty", "expected a number above 0 and at most 2")
    top_k = _between("top_k", asked.top_k, -1, _LARGEST_INT)
    return Sampling(
        temperature=_between("temperature", asked.temperature, 0, 2),
        top_p=asked.top_p,
        top_k=None if top_k is None or top_k <= 0 else top_k,
        min_p=_between("min_p", asked.min_p, 0, 1),
        frequency_penalty=_between("frequency_penalty", asked.frequency_penalty, -2, 2),
        presence_penalty=_between("presence_penalty", asked.presence_penalty, -2, 2),
        repetition_penalty=asked.repetition_penalty,
        logit_bias=_logit_bias(asked.logit_bias),
        seed=_between("seed", asked.seed, -_LARGEST_INT - 1, _LARGEST_INT),
        stop=_stop(asked.stop),
        max_tokens=_between(named, limit, 1, _LARGEST_INT),
        grammar=_grammar(asked.response_format),
    )


def _between(param: str, value: N, low: int, high: int) -> N:
    """`value` if it is in range or was left open. JSON has no NaN, so a range is enough."""
    if value is not None and not low <= value <= high:
        bounds = f"at least {low}" if high == _LARGEST_INT else f"from {low} to {high}"
        raise invalid(param, f"expected a number {bounds}")
    return value


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS:
        raise invalid("stop", f"at most {_MOST_STOPS} sequences are allowed")
    if any(not 1 <= len(text) <= _STOP_CHARACTERS for text in stops):
        raise invalid("stop", f"each sequence has 1 to {_STOP_CHARACTERS} characters")
    return stops


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    wrong = next((key for key in bias if not (key.isdecimal() and len(key) <= 9)), None)
    if wrong is not None:
        raise invalid("logit_bias", "keys are token ids")
    if not all(math.isfinite(value) and -100 <= value <= 100 for value in bias.values()):
        raise invalid("logit_bias", "values are numbers from -100 to 100")
    return {int(key): value for key, value in bias.items()}


def _grammar(form: _ResponseFormat | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"json_schema": '{"type":"object"}'}
    if form.type != "json_schema":
        raise invalid(
            "response_format.type",
            "supported values are 'text', 'json_object' and 'json_schema'",
        )
    schema = (form.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(
            "Missing required parameter: 'response_format.json_schema.schema'.",
            param="response_format.json_schema.schema",
            code="missing_required_parameter",
        )
    check_depth(schema, "response_format.json_schema.schema")
    return {"json_schema": msgspec.json.encode(schema).decode()}


def _top_logprobs(asked: _Body) -> int | None:
    if asked.top_logprobs is not None:
        _between("top_logprobs", asked.top_logprobs, 0, _MOST_TOP_LOGPROBS)
        if not asked.logprobs:
            raise invalid("top_logprobs", "only allowed when 'logprobs' is true")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _template_kwargs(asked: _Body) -> dict[str, Any]:
    kwargs = dict(asked.chat_template_kwargs or {})
    for name in _RESERVED:
        if name in kwargs:
            raise invalid("chat_template_kwargs", f"'{name}' is given by the request itself")
    check_depth(kwargs, "chat_template_kwargs")
    if asked.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", asked.reasoning_effort)
    return kwargs
