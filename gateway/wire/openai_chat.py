"""The dialect of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from gateway.config import ServerSettings
from gateway.errors import NextstateError
from gateway.records import Sampling, TurnRequest
from gateway.wire.chat_encoder import ChatEncoder, error_body
from gateway.wire.chat_messages import checked_messages, checked_tools
from gateway.wire.chat_tool_choice import checked_choice
from gateway.wire.clients import caller
from gateway.wire.json_body import JsonBody, check_depth, invalid, unsupported
from gateway.wire.outcome import outcome_of
from gateway.wire.reply_schema import reply_grammar
from gateway.wire.sampling_fields import SamplingFields, between

_MOST_TOOLS = 512
_MOST_CHOICES = 8
_MOST_TOP_LOGPROBS = 20
_MODEL_CHARACTERS = 256
#: Names that rendering gives to templates itself.
_RESERVED = ("messages", "tools", "add_generation_prompt")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: dict[str, Any] | None = None


class _Body(SamplingFields, kw_only=True):
    """The fields that mean something here; all others are ignored."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
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
        choices = 1 if asked.n is None else between("n", asked.n, 1, _MOST_CHOICES)
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
    limit, named = asked.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, named = asked.max_tokens, "max_tokens"
    return asked.sampling(limit, named, _grammar(asked.response_format))


def _grammar(form: _ResponseFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    at = "response_format"
    schema = (form.json_schema or {}).get("schema")
    return reply_grammar(form.type, schema, f"{at}.type", f"{at}.json_schema.schema")


def _top_logprobs(asked: _Body) -> int | None:
    if asked.top_logprobs is not None:
        between("top_logprobs", asked.top_logprobs, 0, _MOST_TOP_LOGPROBS)
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
