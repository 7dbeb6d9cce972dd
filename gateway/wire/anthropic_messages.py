"""The dialect of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from gateway.config import ServerSettings
from gateway.errors import NextstateError
from gateway.records import Sampling, TurnRequest
from gateway.wire import anthropic_errors
from gateway.wire.anthropic_blocks import converted, wrong
from gateway.wire.anthropic_encoder import MessageEncoder
from gateway.wire.anthropic_tools import converted_choice, converted_tools
from gateway.wire.anthropic_user import known_user
from gateway.wire.clients import caller
from gateway.wire.json_body import JsonBody, check_depth
from gateway.wire.media import NO_MEDIA, MediaReader, MediaRules
from gateway.wire.request_fields import MODEL_CHARACTERS
from gateway.wire.sampling_fields import LARGEST_INT
from gateway.wire.session_hints import group_in_body

_MOST_STOPS = 32
_STOP_CHARACTERS = 1_000
_EFFORTS = ("low", "medium", "high")


class ConversationBody(msgspec.Struct, kw_only=True):
    """What is read of a request; all other fields are ignored."""

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None


class MessageBody(ConversationBody, kw_only=True):
    """The same for a reply that is wanted."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class AnthropicMessages:
    """Requests and replies of the Messages API.

    `max_tokens` beyond what the context leaves is cut to that, since agents ask for what the
    model that they know could say at most. Tools that the API runs itself and threads (a
    conversation kept by the server) are refused in so many words.
    """

    name = "anthropic_messages"

    def __init__(self, media: MediaRules = NO_MEDIA) -> None:
        self._media = media
        self._json = JsonBody(MessageBody)
        self._counted = JsonBody(ConversationBody)

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        asked: MessageBody = self._json.decode(body)
        return self._request(asked, _sampling(asked), asked, headers, limits)

    def parse_count(
        self, body: bytes, headers: Mapping[str, str], limits: ServerSettings
    ) -> TurnRequest:
        """A conversation whose tokens are to be counted. Raises InvalidRequest."""
        return self._request(self._counted.decode(body), Sampling(), None, headers, limits)

    def encoder(
        self,
        request: TurnRequest,  # noqa: ARG002 - one form serves every request
        response_id: UUID,
        created: int,  # noqa: ARG002 - not told in this dialect
        model: str,
    ) -> MessageEncoder:
        return MessageEncoder(response_id, model)

    def error(
        self, error: NextstateError, request_id: UUID | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        return anthropic_errors.answer(error, request_id)

    def _request(
        self,
        asked: ConversationBody,
        sampling: Sampling,
        whole: MessageBody | None,
        headers: Mapping[str, str],
        limits: ServerSettings,
    ) -> TurnRequest:
        user = known_user(whole.metadata if whole else None, limits.max_id_bytes)
        group = group_in_body(whole.metadata if whole else None, limits.max_id_bytes)
        who = caller(headers, limits.max_id_bytes).or_session(user.session_name).or_group(group)
        if asked.thread is not None:
            raise wrong(
                "thread",
                "threads are not supported; send the whole conversation",
                anthropic_errors.THREAD,
            )
        if not asked.model or len(asked.model) > MODEL_CHARACTERS:
            raise wrong("model", f"expected 1 to {MODEL_CHARACTERS} characters")
        tools = converted_tools(asked.tools or ())
        tool_choice, allowed = converted_choice(asked.tool_choice, tools)
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=converted(
                asked.system,
                asked.messages,
                limits.max_messages,
                MediaReader(self._media, limits, wrong),
            ),
            sampling=sampling,
            tools=tools,
            stream=bool(whole and whole.stream),
            include_usage=True,
            tool_choice=tool_choice,
            allowed_tools=allowed,
            parallel_tool_calls=(asked.tool_choice or {}).get("disable_parallel_tool_use")
            is not True,
            call_prefix="toolu_",
            shorten=True,
            user=user.name,
            template_kwargs=_template_kwargs(asked),
            **asdict(who),
        )


def _sampling(asked: MessageBody) -> Sampling:
    if not 1 <= asked.max_tokens <= LARGEST_INT:
        raise wrong("max_tokens", "expected a number of at least 1")
    if asked.temperature is not None and not 0 <= asked.temperature <= 2:
        raise wrong("temperature", "expected a number from 0 to 2")
    if asked.top_p is not None and not 0 < asked.top_p <= 1:
        raise wrong("top_p", "expected a number above 0 and at most 1")
    if asked.top_k is not None and not -1 <= asked.top_k <= LARGEST_INT:
        raise wrong("top_k", "expected a number of at least 0")
    stops = asked.stop_sequences or []
    if len(stops) > _MOST_STOPS:
        raise wrong("stop_sequences", f"at most {_MOST_STOPS} sequences are allowed")
    if any(not 1 <= len(text) <= _STOP_CHARACTERS for text in stops):
        raise wrong("stop_sequences", f"each sequence has 1 to {_STOP_CHARACTERS} characters")
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k if asked.top_k and asked.top_k > 0 else None,
        stop=tuple(stops),
        max_tokens=asked.max_tokens,
        grammar=_grammar(asked),
    )


def _grammar(asked: MessageBody) -> dict[str, Any] | None:
    at = "output_config.format"
    form = (asked.output_config or {}).get("format")
    if form is None:
        at, form = "output_format", asked.output_format
    if form is None:
        return None
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict) or form.get("type") != "json_schema":
        raise wrong(at, "expected an object of type 'json_schema' with a schema")
    check_depth(schema, at)
    return {"json_schema": msgspec.json.encode(schema).decode()}


def _template_kwargs(asked: ConversationBody) -> dict[str, Any]:
    """What templates know of thinking, in the names that they have for it."""
    kwargs: dict[str, Any] = {}
    if kind := (asked.thinking or {}).get("type"):
        kwargs["enable_thinking"] = kind != "disabled"
    effort = (asked.output_config or {}).get("effort")
    if isinstance(effort, str):
        kwargs["reasoning_effort"] = effort if effort in _EFFORTS else _EFFORTS[-1]
    return kwargs
