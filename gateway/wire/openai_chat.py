"""The dialect of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from gateway.config import ServerSettings
from gateway.records import Message, Sampling, TurnRequest
from gateway.wire.chat_encoder import ChatEncoder
from gateway.wire.chat_functions import (
    UNTOLD_PREFIX,
    function_choice,
    functions_as_calls,
    functions_as_tools,
)
from gateway.wire.chat_messages import check_messages, checked_tools, unusual
from gateway.wire.chat_tool_choice import Tools, checked_choice
from gateway.wire.clients import caller
from gateway.wire.functions_encoder import FunctionsEncoder
from gateway.wire.json_body import JsonBody, invalid, unsupported
from gateway.wire.media import NO_MEDIA, MediaReader, MediaRules
from gateway.wire.openai_errors import OpenAIErrors
from gateway.wire.reply_schema import reply_grammar
from gateway.wire.request_fields import (
    MOST_TOOLS,
    MOST_TOP_LOGPROBS,
    StreamOptions,
    check_model,
    choices_of,
    template_options,
    with_usage,
)
from gateway.wire.sampling_fields import SamplingFields, between
from gateway.wire.session_hints import group_in_body

#: What sets a request of the old `functions` apart.
_OLD: Mapping[str, Any] = {"call_prefix": UNTOLD_PREFIX, "echo": {"functions": True}}


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: dict[str, Any] | None = None


class ChatBody(SamplingFields, kw_only=True):
    """The fields that mean something here; all others are ignored."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
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
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    user: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: Any = None


class OpenAIChat(OpenAIErrors):
    """Requests and replies of the chat completions API, the old `functions` among them."""

    name = "openai_chat"

    def __init__(self, media: MediaRules = NO_MEDIA) -> None:
        self._json = JsonBody(ChatBody)
        self._media = media

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        asked: ChatBody = self._json.decode(body)
        who = caller(headers, limits.max_id_bytes)
        if asked.metadata is not None:
            who = who.or_group(group_in_body(asked.metadata, limits.max_id_bytes))
        check_model(asked.model)
        choices = 1 if asked.n is None else choices_of(asked.n)
        options = asked.stream_options
        include_usage = False if options is None else with_usage(asked.stream, options)
        if "audio" in (asked.modalities or ()):
            raise unsupported("modalities", "This model does not speak.")
        messages: Sequence[Message] = asked.messages
        if odd := unusual(asked.messages, limits.max_messages):
            check_messages(asked.messages, odd, MediaReader(self._media, limits))
            messages = functions_as_calls(asked.messages)
        tools, tool_choice, allowed = _tools(asked)
        sampling = _sampling(asked)
        if asked.top_logprobs is not None:
            _check_logprobs(asked.top_logprobs, asked.logprobs)
        given, effort = asked.chat_template_kwargs, asked.reasoning_effort
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=tuple(messages),
            sampling=sampling,
            tools=tools,
            stream=bool(asked.stream),
            include_usage=include_usage,
            tool_choice=tool_choice,
            allowed_tools=allowed,
            parallel_tool_calls=asked.parallel_tool_calls is not False and not asked.functions,
            choices=choices,
            top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            stop_token_ids=asked.stop_ids if asked.stop_token_ids else (),
            user=asked.user,
            template_kwargs=template_options(given, effort) if given or effort is not None else {},
            **asdict(who),
            **(_OLD if asked.functions else {}),
        )

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> ChatEncoder:
        kind = FunctionsEncoder if "functions" in request.echo else ChatEncoder
        return kind(request, response_id, created, model)


def _tools(asked: ChatBody) -> tuple[Tools, str, tuple[str, ...]]:
    """(tools, `auto`, `none` or `required`, the names of which a call must be; none means any)."""
    if not asked.functions:
        if not asked.tools and asked.tool_choice is None and asked.function_call is None:
            return (), "auto", ()
        if asked.function_call not in (None, "auto", "none"):
            raise invalid("function_call", "only allowed when 'functions' are specified")
        return checked_choice(asked.tool_choice, checked_tools(asked.tools or (), MOST_TOOLS))
    if asked.tools or asked.tool_choice not in (None, "auto"):
        raise invalid("functions", "not allowed together with 'tools' or 'tool_choice'")
    tools = functions_as_tools(asked.functions, MOST_TOOLS)
    return tools, *function_choice(asked.function_call, tools)


def _sampling(asked: ChatBody) -> Sampling:
    limit, named = asked.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, named = asked.max_tokens, "max_tokens"
    form = asked.response_format
    return asked.sampling(limit, named, None if form is None else _grammar(form))


def _grammar(form: _ResponseFormat) -> dict[str, Any] | None:
    at = "response_format"
    schema = (form.json_schema or {}).get("schema")
    return reply_grammar(form.type, schema, f"{at}.type", f"{at}.json_schema.schema")


def _check_logprobs(most: int, wanted: bool | None) -> None:
    between("top_logprobs", most, 0, MOST_TOP_LOGPROBS)
    if not wanted:
        raise invalid("top_logprobs", "only allowed when 'logprobs' is true")
