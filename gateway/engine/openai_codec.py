"""Chat completions as an OpenAI-compatible server takes and streams them, as records."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.errors import (
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from gateway.records import (
    FILTERED,
    REFUSED,
    Delta,
    FinishReason,
    TextFinish,
    TextGeneration,
    TurnRequest,
    Usage,
    plain_parts,
)

LimitField = Literal["max_tokens", "max_completion_tokens"]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode

#: What else ends a reply ended it as a stop does. What a filter cut is as incomplete as what a
#: limit did, and is judged so.
_REASONS = {
    "length": FinishReason.LENGTH,
    FILTERED: FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}
#: Names that mean the same in a request and in `Sampling`.
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip


def request_body(generation: TextGeneration, model: str, limit_field: LimitField) -> bytes:
    """The body of a streaming `/chat/completions`: what the client set, and nothing else."""
    request, sampling = generation.request, generation.request.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": plain_parts(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name in _SAMPLING:
        if (value := getattr(sampling, name)) is not None:
            body[name] = value
    if sampling.max_tokens is not None:
        body[limit_field] = sampling.max_tokens
    if generation.seed is not None:
        body["seed"] = generation.seed
    if sampling.stop:
        body["stop"] = sampling.stop
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.grammar and (schema := sampling.grammar.get("json_schema")):
        body["response_format"] = _response_format(schema)
    if "reasoning_effort" in request.template_kwargs:
        body["reasoning_effort"] = request.template_kwargs["reasoning_effort"]
    if request.tools:
        body |= _tools(request)
    return _encode(body)


def _tools(request: TurnRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"tools": request.tools, "tool_choice": request.tool_choice}
    named = [{"type": "function", "function": {"name": name}} for name in request.allowed_tools]
    if len(named) == 1:
        body["tool_choice"] = named[0]
    elif named:
        body["tool_choice"] = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": named},
        }
    if not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    return body


def _response_format(schema: str) -> dict[str, Any]:
    value = msgspec.json.decode(schema)
    if value == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": value}}


class EventLines:
    """The data of server-sent events as they arrive, whatever line ends and comments there are."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, part: bytes) -> list[bytes]:
        *lines, self._pending = (self._pending + part).split(b"\n")
        payloads = (line[5:].strip() for line in lines if line.startswith(b"data:"))
        return [payload for payload in payloads if payload]


class TextReader:
    """Turns events into deltas. Calls are numbered from 0, however the server numbers them."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._numbers: list[int | str | None] = []
        self._refused = False
        self._filtered = False

    def read(self, payload: bytes) -> tuple[Delta, ...]:
        """What an event adds. Raises the server's refusal where it is one."""
        try:
            event = _decode(payload)
        except msgspec.DecodeError as error:
            raise EngineUnavailable(
                f"the reply cannot be read: {error}", engine=self._engine
            ) from None
        if event.error:
            status = event.error.get("code") if isinstance(event.error, dict) else None
            raise refusal(status if isinstance(status, int) else 500, payload, self._engine)
        if event.usage is not None:
            asked = event.usage.prompt_tokens_details or _Details()
            replied = event.usage.completion_tokens_details or _Details()
            self._usage = Usage(
                prompt_tokens=event.usage.prompt_tokens,
                completion_tokens=event.usage.completion_tokens,
                cached_tokens=asked.cached_tokens or 0,
                reasoning_tokens=replied.reasoning_tokens or 0,
            )
        deltas: list[Delta] = []
        for choice in event.choices[:1]:
            said = choice.delta or choice.message
            if said is not None:
                deltas += self._deltas(said)
            if choice.finish_reason is not None:
                self._reason = _REASONS.get(choice.finish_reason, FinishReason.STOP)
                self._filtered = choice.finish_reason == FILTERED
        return tuple(deltas)

    def finish(self) -> TextFinish:
        """How the reply ended. Raises EngineUnavailable where it has not."""
        if self._reason is None:
            raise EngineUnavailable("the stream ended before the reply did", engine=self._engine)
        # What its model refused to say is no reply to judge as a whole one, as with a filter.
        stopped = self._refused and self._reason is FinishReason.STOP
        reason = FinishReason.LENGTH if stopped else self._reason
        detail = FILTERED if self._filtered else REFUSED if self._refused else None
        return TextFinish(reason=reason, usage=self._usage, detail=detail)

    def _deltas(self, said: _Said) -> list[Delta]:
        deltas = []
        if reasoning := said.reasoning_content or said.reasoning:
            deltas.append(Delta(reasoning=reasoning))
        if text := said.content or said.refusal:
            deltas.append(Delta(text=text))
        self._refused |= bool(said.refusal)
        for call in said.tool_calls or ():
            deltas += self._call(call)
        return deltas

    def _call(self, call: _Call) -> list[Delta]:
        function = call.function or _Function()
        deltas = []
        key = call.index if call.index is not None else call.id
        if key not in self._numbers and (function.name or not self._numbers):
            self._numbers.append(key)
            index = len(self._numbers) - 1
            deltas.append(
                Delta(call_index=index, call_id=call.id or "", call_name=function.name or "")
            )
        elif key in self._numbers:
            index = self._numbers.index(key)
        else:
            # No number and no name: more of the call before.
            index = len(self._numbers) - 1
        if function.arguments:
            deltas.append(Delta(call_index=index, arguments=function.arguments))
        return deltas


def refusal(status: int, body: bytes, engine: str) -> EngineError:
    """The error for an HTTP status, of a response or inside a stream.

    What the client's request is at fault for is EngineRejected, in the server's words; a key or
    an address that is wrong is the operator's matter.
    """
    message = f"status {status}: {_words(body)}"
    if status == 429:
        return EngineOverloaded(message, engine=engine)
    if status in (408, 504):
        return EngineTimeout(message, engine=engine)
    if status in (400, 413, 422):
        return EngineRejected(_words(body), engine=engine)
    return EngineUnavailable(message, engine=engine)


def _words(body: bytes) -> str:
    try:
        reply = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:500].decode(errors="replace")
    while isinstance(reply, dict):
        inner = next((reply[key] for key in ("error", "message", "detail") if reply.get(key)), None)
        if inner is None:
            break
        reply = inner
    return str(reply)[:500]
