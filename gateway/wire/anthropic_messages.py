"""The dialect of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from gateway.config import ServerSettings
from gateway.errors import NextstateError
from gateway.records import Sampling, TurnRequest
from gateway.wire import anthropic_errors
from gateway.wire.anthropic_blocks import converted, wrong
from gateway.wire.anthropic_encoder import MessageEncoder
from gateway.wire.anthropic_user import known_user
from gateway.wire.clients import caller
from gateway.wire.json_body import JsonBody, check_depth

_MOST_TOOLS = 512
_MOST_STOPS = 32
_STOP_CHARACTERS = 1_000
_MODEL_CHARACTERS = 256
_LARGEST_INT = 2**63 - 1
_EFFORTS = ("low", "medium", "high")


class _Conversation(msgspec.Struct, kw_only=True):
    """What is read of a request; all other fields are ignored."""

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None


class _Body(_Conversation, kw_only=True):
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

    def __init__(self) -> None:
        self._json = JsonBody(_Body)
        self._counted = JsonBody(_Conversation)

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        asked: _Body = self._json.decode(body)
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
        asked: _Conversation,
        sampling: Sampling,
        whole: _Body | None,
        headers: Mapping[str, str],
        limits: ServerSettings,
    ) -> TurnRequest:
        who = caller(headers, limits.max_id_bytes)
        if asked.thread is not None:
            raise wrong(
                "thread",
                "threads are not supported; send the whole conversation",
                anthropic_errors.THREAD,
            )
        if not asked.model or len(asked.model) > _MODEL_CHARACTERS:
            raise wrong("model", f"expected 1 to {_MODEL_CHARACTERS} characters")
        tools = _tools(asked.tools or ())
        tool_choice, allowed = _tool_choice(asked.tool_choice, tools)
        user = known_user(whole.metadata if whole else None, limits.max_id_bytes)
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=converted(asked.system, asked.messages, limits.max_messages),
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
            session_name=who.session_name or user.session_name,
            parent_session_name=who.parent_session_name,
            marker=who.marker,
            declared_kind=who.declared_kind,
            turn_type=who.turn_type,
            session_done=who.session_done,
            retry_count=who.retry_count,
            idempotency_key=who.idempotency_key,
            user=user.name,
            client=who.client,
            template_kwargs=_template_kwargs(asked),
        )


def _sampling(asked: _Body) -> Sampling:
    if not 1 <= asked.max_tokens <= _LARGEST_INT:
        raise wrong("max_tokens", "expected a number of at least 1")
    if asked.temperature is not None and not 0 <= asked.temperature <= 2:
        raise wrong("temperature", "expected a number from 0 to 2")
    if asked.top_p is not None and not 0 < asked.top_p <= 1:
        raise wrong("top_p", "expected a number above 0 and at most 1")
    if asked.top_k is not None and not -1 <= asked.top_k <= _LARGEST_INT:
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


def _grammar(asked: _Body) -> dict[str, Any] | None:
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


def _tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Tools in OpenAI form: their name, description and schema."""
    if len(tools) > _MOST_TOOLS:
        raise wrong("tools", f"at most {_MOST_TOOLS} tools are allowed")
    return tuple(_tool(tool, f"tools.{index}") for index, tool in enumerate(tools))


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind, schema = tool.get("type"), tool.get("input_schema")
    if kind not in (None, "custom") and schema is None:
        raise wrong(
            f"{at}.type", "only tools that the client runs are supported", "unsupported_parameter"
        )
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise wrong(f"{at}.name", "expected a string of at least 1 character")
    if description is not None and not isinstance(description, str):
        raise wrong(f"{at}.description", "expected a string")
    if not isinstance(schema, dict):
        raise wrong(f"{at}.input_schema", "expected an object")
    check_depth(schema, f"{at}.input_schema")
    function = {"name": name, "description": description or "", "parameters": schema}
    return {"type": "function", "function": function}


def _tool_choice(
    choice: Mapping[str, Any] | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[str, ...]]:
    """(`auto`, `none` or `required`, the names that may be called; none means all of them)."""
    at, kind = "tool_choice", (choice or {}).get("type", "auto")
    if kind in ("auto", "none"):
        return kind, ()
    if kind not in ("any", "tool"):
        raise wrong(f"{at}.type", "expected one of 'auto', 'any', 'tool', 'none'")
    if not tools:
        raise wrong(at, "may only be specified while providing tools")
    if choice is None or kind == "any":
        return "required", ()
    name = choice.get("name")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise wrong(f"{at}.name", "expected the name of one of the tools")
    return "required", (str(name),)


def _template_kwargs(asked: _Conversation) -> dict[str, Any]:
    """What templates know of thinking, in the names that they have for it."""
    kwargs: dict[str, Any] = {}
    if kind := (asked.thinking or {}).get("type"):
        kwargs["enable_thinking"] = kind != "disabled"
    effort = (asked.output_config or {}).get("effort")
    if isinstance(effort, str):
        kwargs["reasoning_effort"] = effort if effort in _EFFORTS else _EFFORTS[-1]
    return kwargs
