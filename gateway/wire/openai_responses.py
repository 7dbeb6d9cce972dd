"""The dialect of `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import asdict, replace

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest, NotFound
from gateway.records import INSTRUCTIONS, ORDER, Message, Sampling, TurnRequest
from gateway.wire.chat_tool_choice import checked_choice
from gateway.wire.clients import caller
from gateway.wire.json_body import JsonBody, check_depth, invalid, missing, unsupported
from gateway.wire.media import NO_MEDIA, MediaReader, MediaRules
from gateway.wire.openai_errors import OpenAIErrors
from gateway.wire.reply_schema import reply_grammar
from gateway.wire.request_fields import MOST_TOP_LOGPROBS, check_model, template_options
from gateway.wire.responses_encoder import ResponsesEncoder
from gateway.wire.responses_ids import turn_of_response
from gateway.wire.responses_input import (
    REFERENCE,
    last_turn,
    messages_of,
    missing_item,
    references,
)
from gateway.wire.responses_output import Item, repeated
from gateway.wire.responses_stored import to_store
from gateway.wire.responses_tools import function_tools, in_chat_form
from gateway.wire.sampling_fields import between, nucleus, reply_limit
from gateway.wire.session_hints import group_in_body, session_in_body

_LOGPROBS = "message.output_text.logprobs"


class _Text(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseBody(msgspec.Struct):
    """The fields that mean something here; all others are ignored."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OpenAIResponses(OpenAIErrors):
    """Requests and replies of the Responses API.

    A reply's reasoning is shown in the open, or as the summary where one is asked for. What needs
    a service of the original (background, conversations, stored prompts, its own tools being
    forced) is refused in so many words rather than served in part.
    """

    name = "openai_responses"
    params = {  # noqa: RUF012 - read only
        "messages": "input",
        "response_format": "text.format",
        "max_tokens": "max_output_tokens",
    }

    def __init__(self, media: MediaRules = NO_MEDIA) -> None:
        self._json = JsonBody(ResponseBody)
        self._media = media

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        asked: ResponseBody = self._json.decode(body)
        named = session_in_body(asked.prompt_cache_key, asked.client_metadata, limits.max_id_bytes)
        group = group_in_body(asked.metadata, limits.max_id_bytes)
        who = caller(headers, limits.max_id_bytes).or_session(named).or_group(group)
        _check(asked)
        tools, namespaces = function_tools(asked.tools or ())
        tools, tool_choice, allowed = checked_choice(in_chat_form(asked.tool_choice), tools)
        summary = (
            asked.reasoning.summary or asked.reasoning.generate_summary if asked.reasoning else None
        )
        media = MediaReader(self._media, limits)
        said = _said(asked)
        logprobs = [_LOGPROBS] if _LOGPROBS in (asked.include or ()) else []
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=tuple(_messages(asked, limits.max_messages, media)),
            sampling=_sampling(asked),
            tools=tools,
            stream=bool(asked.stream),
            include_usage=True,
            tool_choice=tool_choice,
            allowed_tools=allowed,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            shorten=True,
            top_logprobs=(asked.top_logprobs or 0) if logprobs else None,
            user=asked.safety_identifier or asked.user,
            template_kwargs=template_options(
                asked.chat_template_kwargs, asked.reasoning.effort if asked.reasoning else None
            ),
            previous_turn=_previous(asked.previous_response_id) or last_turn(asked.input),
            store=asked.store is not False,
            response_fields=None if asked.store is False else to_store(said, tools, logprobs),
            echo={
                "items": asked.input if references(asked.input) else None,
                "media": media,
                "response": repeated(said),
                "summary": summary is not None,
                "namespaces": namespaces,
            },
            **asdict(who),
        )

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> ResponsesEncoder:
        return ResponsesEncoder(request, response_id, created, model)


def unknown_previous(id_: str) -> InvalidRequest:
    """The original's answer to a `previous_response_id` that it does not have."""
    return InvalidRequest(
        f"Previous response with id '{id_}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def unknown_response(id_: str) -> NotFound:
    """The original's answer to an id in the path that it does not have."""
    error = NotFound(f"Response with id '{id_}' not found.")
    error.kind = "invalid_request_error"
    error.code = None
    return error


def referred(request: TurnRequest) -> dict[str, UUID]:
    """Items that a request only refers to, and the turns whose replies they are of.

    Raises NotFound for an id that is none of ours.
    """
    return references(request.echo["items"])


def with_items(request: TurnRequest, items: Mapping[str, Item], most: int) -> TurnRequest:
    """A request with the items that it refers to. Raises NotFound for one that is missing."""
    given = [
        items.get(item["id"]) or missing_item(item["id"]) if item.get("type") == REFERENCE else item
        for item in request.echo["items"]
    ]
    return replace(
        request, messages=(*request.messages, *messages_of(given, most, request.echo["media"]))
    )


def continues_stored(request: TurnRequest) -> bool:
    """Whether the conversation before the input is left to the store."""
    return request.echo["response"]["previous_response_id"] is not None


def may_be_cut(request: TurnRequest) -> bool:
    """Whether the oldest items may be dropped where all of them are too long."""
    return bool(request.echo["response"].get("truncation") == "auto")


def continued(before: Sequence[Message], new: Sequence[Message]) -> tuple[Message, ...]:
    """A stored conversation and what follows it, under the new request's own instructions."""
    own = [message for message in new if message.get(INSTRUCTIONS)]
    kept = [_unmarked(message) for message in before if not message.get(INSTRUCTIONS)]
    return (*own, *kept, *new[len(own) :])


def _unmarked(message: Message) -> Message:
    """A stored message as it was said."""
    return {key: value for key, value in message.items() if key != ORDER}


def _check(asked: ResponseBody) -> None:
    check_model(asked.model)
    if asked.input is None:
        raise missing("input")
    if asked.background:
        raise unsupported("background", "Background responses are not supported.")
    if asked.prompt is not None:
        raise unsupported("prompt", "Stored prompts are not supported; send 'input'.")
    if asked.conversation is not None:
        raise unsupported(
            "conversation",
            "Conversations are not supported; use 'previous_response_id' or send all items.",
        )
    if asked.truncation not in (None, "auto", "disabled"):
        raise invalid("truncation", "supported values are 'auto' and 'disabled'")
    between("top_logprobs", asked.top_logprobs, 0, MOST_TOP_LOGPROBS)
    metadata = asked.metadata or {}
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise invalid("metadata", "at most 16 keys of 64 characters, values of 512, are allowed")


def _messages(asked: ResponseBody, most: int, media: MediaReader) -> list[Message]:
    assert asked.input is not None, "checked before"
    messages = [] if references(asked.input) else messages_of(asked.input, most, media)
    if not asked.input and asked.previous_response_id is None:
        raise invalid("input", "expected at least one item", "empty_array")
    if asked.instructions:
        messages.insert(0, {"role": "system", "content": asked.instructions, INSTRUCTIONS: True})
    return messages


def _sampling(asked: ResponseBody) -> Sampling:
    form = (asked.text.format if asked.text else None) or {"type": "text"}
    at = "text.format"
    return Sampling(
        temperature=between("temperature", asked.temperature, 0, 2),
        top_p=nucleus(asked.top_p),
        max_tokens=reply_limit("max_output_tokens", asked.max_output_tokens),
        grammar=reply_grammar(form.get("type"), form.get("schema"), f"{at}.type", f"{at}.schema"),
    )


def _previous(id_: str | None) -> UUID | None:
    if id_ is None:
        return None
    turn_id = turn_of_response(id_)
    if turn_id is None:
        raise unknown_previous(id_)
    return turn_id


def _said(asked: ResponseBody) -> dict[str, Any]:
    """What the request says of the fields that its response repeats."""
    said = {
        name: value
        for name in (
            "instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
            "previous_response_id", "prompt_cache_key", "safety_identifier", "store",
            "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
        )
        if (value := getattr(asked, name)) is not None
    }  # fmt: skip
    if asked.reasoning is not None:
        said["reasoning"] = {
            "effort": asked.reasoning.effort,
            "summary": asked.reasoning.summary or asked.reasoning.generate_summary,
        }
    if asked.text is not None:
        said["text"] = {"format": asked.text.format or {"type": "text"}}
        if asked.text.verbosity is not None:
            said["text"]["verbosity"] = asked.text.verbosity
    for name, value in said.items():
        check_depth(value, name)
    return said
