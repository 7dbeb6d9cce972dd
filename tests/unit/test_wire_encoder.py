from __future__ import annotations

import itertools
import json
from typing import Any
from uuid import UUID

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.errors import (
    AuthenticationError,
    BodyTooLarge,
    ConfigError,
    ContextTooLong,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    ModelNotFound,
    NextstateError,
    PermissionDenied,
    StoreUnavailable,
    TooManyRequests,
)
from gateway.records import Delta, FinishReason, Reply, Sampling, ToolCall, TurnRequest, Usage
from gateway.wire.base import TokenLogprob
from gateway.wire.chat_encoder import ChatEncoder
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.sse import event

ID = UUID(int=255)
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)
CALLS = (
    ToolCall(id="call_a", name="f", arguments='{"a": 1}'),
    ToolCall(id="call_b", name="g", arguments="{}"),
)


def encoder(*, choices: int = 1, include_usage: bool = False) -> ChatEncoder:
    request = TurnRequest(
        dialect="openai_chat",
        model="m",
        messages=(),
        sampling=Sampling(),
        choices=choices,
        include_usage=include_usage,
    )
    return OpenAIChat().encoder(request, ID, 1_700_000_000, "m")


def events(stream: bytes) -> list[Any]:
    """The data of each event, comments left out; `[DONE]` is the string."""
    found: list[Any] = []
    for block in stream.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def stream_of(writer: ChatEncoder, deltas: list[Delta], reason: FinishReason) -> list[Any]:
    frames = [writer.start(), *(writer.delta(0, delta) for delta in deltas)]
    frames += [writer.comment(), writer.finish(0, reason), writer.end(USAGE)]
    return events(b"".join(frames))


def test_a_stream_is_role_text_reason_done() -> None:
    chunks = stream_of(encoder(), [Delta(text="Hé"), Delta(text="\n\nyou")], FinishReason.STOP)
    assert chunks.pop() == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hé"},
        {"content": "\n\nyou"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    for chunk in chunks:
        assert chunk["id"] == "chatcmpl-000000000000000000000000000000ff"
        assert (chunk["object"], chunk["created"]) == ("chat.completion.chunk", 1_700_000_000)
        assert "usage" not in chunk
        ChatCompletionChunk.model_validate(chunk)


def test_usage_comes_last_and_only_if_asked_for() -> None:
    chunks = stream_of(encoder(include_usage=True), [Delta(text="a")], FinishReason.LENGTH)
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert [chunk["usage"] for chunk in chunks] == [None, None, None]


def test_the_official_client_puts_a_stream_together_as_the_whole_reply() -> None:
    deltas = [
        Delta(text="Let me "),
        Delta(text="see."),
        Delta(call_index=0, call_id="call_a", call_name="f"),
        Delta(call_index=0, arguments='{"a"'),
        Delta(call_index=0, arguments=": 1}"),
        Delta(call_index=1, call_id="call_b", call_name="g", arguments="{}"),
    ]
    chunks = stream_of(encoder(include_usage=True), deltas, FinishReason.TOOL_CALLS)
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for chunk in chunks[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    streamed = state.get_final_completion()
    whole = ChatCompletion.model_validate_json(
        encoder().whole(
            [Reply(text="Let me see.", tool_calls=CALLS)], [FinishReason.TOOL_CALLS], USAGE
        )
    )
    for found in (streamed, whole):
        [choice] = found.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert choice.message.tool_calls is not None
        assert [
            (call.id, call.type, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls
            if call.type == "function"
        ] == [("call_a", "function", "f", '{"a": 1}'), ("call_b", "function", "g", "{}")]
        assert found.usage is not None
        assert found.usage.total_tokens == 12
    assert streamed.id == whole.id


def test_reasoning_has_a_field_of_its_own() -> None:
    chunks = stream_of(
        encoder(), [Delta(reasoning="Hm."), Delta(text="a", reasoning="b")], FinishReason.STOP
    )
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:3]] == [
        {"reasoning_content": "Hm."},
        {"content": "a", "reasoning_content": "b"},
    ]
    whole = json.loads(
        encoder().whole([Reply(text="a", reasoning="Hm.")], [FinishReason.STOP], USAGE)
    )
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "Hm.",
        "refusal": None,
    }


def test_each_choice_has_its_own_chunks() -> None:
    writer = encoder(choices=2)
    frames = [writer.start(), writer.delta(1, Delta(text="b")), writer.finish(1, FinishReason.STOP)]
    indexes = [chunk["choices"][0]["index"] for chunk in events(b"".join(frames))]
    assert indexes == [0, 1, 1, 1]
    whole = json.loads(
        writer.whole(
            [Reply(text="a"), Reply(text="b")], [FinishReason.STOP, FinishReason.LENGTH], USAGE
        )
    )
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length"]
    with pytest.raises(ValueError, match="zip"):
        writer.whole([Reply(text="a")], [], USAGE)


def test_logprobs_are_given_with_the_bytes_of_each_token() -> None:
    token = TokenLogprob(text="\ufffd", raw=b"\xf0\x9f", logprob=-0.5)
    shown = {
        "content": [{"token": "\ufffd", "logprob": -0.5, "bytes": [240, 159], "top_logprobs": []}],
        "refusal": None,
    }
    [chunk] = events(encoder().delta(0, Delta(), [token]))
    assert chunk["choices"][0]["logprobs"] == shown
    assert chunk["choices"][0]["delta"] == {"content": ""}
    ChatCompletionChunk.model_validate(chunk)
    whole = json.loads(
        encoder().whole([Reply(text="x")], [FinishReason.STOP], USAGE, logprobs=[[token]])
    )
    assert whole["choices"][0]["logprobs"] == shown


def test_what_was_aborted_was_cut_short() -> None:
    [chunk] = events(encoder().finish(0, FinishReason.ABORT))
    assert chunk["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ContextTooLong(limit=10, prompt_tokens=8, reply_tokens=4), 400,
         "invalid_request_error", "context_length_exceeded"),
        (AuthenticationError("no key"), 401, "authentication_error", "invalid_api_key"),
        (PermissionDenied("no"), 403, "permission_error", "permission_denied"),
        (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found"),
        (BodyTooLarge("big"), 413, "invalid_request_error", "request_too_large"),
        (TooManyRequests("slow", retry_after_s=2.1), 429, "rate_limit_error",
         "rate_limit_exceeded"),
        (EngineTimeout("10.0.0.1 was slow", engine="e"), 502, "server_error", "engine_timeout"),
        (EngineRejected("10.0.0.1 said no", engine="e"), 502, "server_error", "engine_rejected"),
        (EngineUnavailable("10.0.0.1", engine="e"), 503, "server_error", "engine_unavailable"),
        (EngineOverloaded("10.0.0.1", engine="e"), 503, "server_error", "engine_overloaded"),
        (StoreUnavailable("postgres at 10.0.0.1"), 503, "server_error", "store_unavailable"),
        (ConfigError("secret of 10.0.0.1"), 500, "server_error", "internal_error"),
    ],
)  # fmt: skip
def test_errors_have_a_status_and_keep_secrets(
    error: NextstateError, status: int, kind: str, code: str
) -> None:
    found, headers, raw = OpenAIChat().error(error)
    body = json.loads(raw)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (found, body["error"]["type"], body["error"]["code"]) == (status, kind, code)
    assert "10.0.0.1" not in body["error"]["message"]
    assert ("retry-after" in headers) is (status in (429, 503))
    assert events(encoder().error_event(error)) == [body]


def test_waiting_times_are_whole_seconds_rounded_up() -> None:
    _, headers, _ = OpenAIChat().error(TooManyRequests("slow", retry_after_s=2.1))
    assert headers == {"retry-after": "3"}
    _, headers, _ = OpenAIChat().error(TooManyRequests("slow", retry_after_s=0))
    assert headers == {"retry-after": "1"}


def test_events_may_have_names() -> None:
    assert event(b"{}", "done") == b"event: done\ndata: {}\n\n"
    assert event(b"{}") == b"data: {}\n\n"


def test_any_text_stays_inside_its_event() -> None:
    text = "".join(map(chr, itertools.chain(range(1, 0x300), (0x2028, 0x2029, 0x1F642))))
    raw = encoder().delta(0, Delta(text=text))
    assert raw.count(b"\n") == 2
    [chunk] = events(raw)
    assert chunk["choices"][0]["delta"]["content"] == text
