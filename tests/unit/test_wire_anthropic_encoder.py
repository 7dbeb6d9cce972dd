from __future__ import annotations

import itertools
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from gateway.errors import (
    AuthenticationError,
    BodyTooLarge,
    ConfigError,
    ContextTooLong,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    NextstateError,
    PermissionDenied,
    StoreUnavailable,
    TooManyRequests,
)
from gateway.pipeline.turn import joined
from gateway.records import Delta, FinishReason, Reply, ToolCall, Usage
from gateway.wire.anthropic_encoder import MessageEncoder
from gateway.wire.anthropic_messages import AnthropicMessages
from tests.unit.anthropic_client import events, message_of
from tests.unit.told_replies import told

ID = UUID(int=255)
SIGNATURE = "AAAAAAAAAAAAAAAAAAAA/w=="
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)
TOLD = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3,
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 2},
}


def encoder() -> MessageEncoder:
    return MessageEncoder(ID, "m")


def stream_of(
    deltas: list[Delta], reason: FinishReason, stopped_by: str | None = None
) -> list[dict[str, Any]]:
    writer = encoder()
    frames = [writer.start(7), *(writer.delta(0, delta) for delta in deltas)]
    frames += [writer.comment(), writer.finish(0, reason, stopped_by), writer.end(USAGE)]
    return events(b"".join(frames))


def whole(reply: Reply, reason: FinishReason, stopped_by: str | None = None) -> dict[str, Any]:
    raw = encoder().whole([reply], [reason], USAGE, (), [stopped_by])
    value: dict[str, Any] = json.loads(raw)
    return value


def test_a_stream_of_text() -> None:
    stream = stream_of([Delta(text="Hé"), Delta(), Delta(text="\n\nyou")], FinishReason.STOP)
    assert stream == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_000000000000000000000000000000ff",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {
                    "input_tokens": 7,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 0,
                    "output_tokens_details": {"thinking_tokens": 0},
                },
            },
        },
        {"type": "ping"},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Hé"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "\n\nyou"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": TOLD,
        },
        {"type": "message_stop"},
    ]


DELTAS = [
    Delta(reasoning="Hm"),
    Delta(reasoning="m."),
    Delta(text="Let me "),
    Delta(text="see."),
    Delta(call_index=0, call_id="toolu_a", call_name="f"),
    Delta(call_index=0, arguments='{"a"'),
    Delta(call_index=0, arguments=": 1}"),
    Delta(call_index=1, call_id="toolu_b", call_name="g", arguments="{}"),
    Delta(call_index=2, call_id="toolu_c", call_name="h"),
]
REPLY = Reply(
    text="Let me see.",
    reasoning="Hmm.",
    tool_calls=(
        ToolCall(id="toolu_a", name="f", arguments='{"a": 1}'),
        ToolCall(id="toolu_b", name="g", arguments="{}"),
        ToolCall(id="toolu_c", name="h", arguments=""),
    ),
)


def test_every_kind_of_block_in_a_stream() -> None:
    stream = stream_of(DELTAS, FinishReason.TOOL_CALLS)
    shape = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in stream
        if "index" in event
    ]
    assert shape == [
        ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("delta", 3), ("delta", 3), ("stop", 3),
        ("start", 4), ("stop", 4),
    ]  # fmt: skip
    assert stream[2]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert stream[5]["delta"] == {"type": "signature_delta", "signature": SIGNATURE}
    assert stream[11]["content_block"] == {
        "type": "tool_use",
        "id": "toolu_a",
        "name": "f",
        "input": {},
    }


def test_a_message_that_does_not_stream() -> None:
    assert whole(REPLY, FinishReason.TOOL_CALLS) == {
        "id": "msg_000000000000000000000000000000ff",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": SIGNATURE},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "toolu_b", "name": "g", "input": {}},
            {"type": "tool_use", "id": "toolu_c", "name": "h", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": TOLD,
    }


def test_a_stream_is_put_together_as_the_whole_message() -> None:
    assert message_of(stream_of(DELTAS, FinishReason.TOOL_CALLS)) == whole(
        REPLY, FinishReason.TOOL_CALLS
    )


def test_words_after_a_call_are_a_block_of_their_own() -> None:
    deltas = [*DELTAS[4:7], Delta(text="Done.")]
    content = message_of(stream_of(deltas, FinishReason.TOOL_CALLS))["content"]
    assert [block["type"] for block in content] == ["tool_use", "text"]


@given(deltas=told())
def test_however_it_is_told_the_blocks_of_a_stream_are_those_of_the_whole(
    deltas: list[Delta],
) -> None:
    reply = joined(deltas).ordered(deltas)
    assert message_of(stream_of(deltas, FinishReason.STOP)) == whole(reply, FinishReason.STOP)


@pytest.mark.parametrize("arguments", ["[1, 2]", '"x"', "nonsense", " \n[]", "{'a': 1}"])
def test_arguments_that_are_no_object_become_one(arguments: str) -> None:
    opened = Delta(call_index=0, call_id="toolu_a", call_name="f")
    deltas = [opened, *(Delta(call_index=0, arguments=letter) for letter in arguments)]
    streamed = message_of(stream_of(deltas, FinishReason.TOOL_CALLS))
    call = ToolCall(id="toolu_a", name="f", arguments=arguments)
    assert streamed == whole(Reply(tool_calls=(call,)), FinishReason.TOOL_CALLS)
    assert streamed["content"][0]["input"] == {"INVALID_JSON": arguments}


def test_arguments_that_break_off_are_whole_all_the_same() -> None:
    deltas = [
        Delta(call_index=0, call_id="toolu_a", call_name="f"),
        Delta(call_index=0, arguments='{"city": "Os'),
    ]
    stream = stream_of(deltas, FinishReason.LENGTH)
    assert [event["delta"] for event in stream if event["type"] == "content_block_delta"] == [
        {"type": "input_json_delta", "partial_json": '{"city": "Os'},
        {
            "type": "input_json_delta",
            "partial_json": '","INVALID_JSON":"{\\"city\\": \\"Os"}',
        },
    ]


@pytest.mark.parametrize(
    ("reason", "stopped_by", "told"),
    [
        (FinishReason.STOP, None, ("end_turn", None)),
        (FinishReason.STOP, "END", ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.TOOL_CALLS, None, ("tool_use", None)),
        (FinishReason.TOOL_CALLS, "END", ("tool_use", None)),
        (FinishReason.ABORT, None, ("max_tokens", None)),
    ],
)
def test_why_a_reply_ended(
    reason: FinishReason, stopped_by: str | None, told: tuple[str, str | None]
) -> None:
    for message in (
        whole(Reply(text="a"), reason, stopped_by),
        message_of(stream_of([Delta(text="a")], reason, stopped_by)),
    ):
        assert (message["stop_reason"], message["stop_sequence"]) == told


def test_an_empty_reply_has_no_block() -> None:
    assert whole(Reply(), FinishReason.STOP)["content"] == []
    assert message_of(stream_of([], FinishReason.STOP)) == whole(Reply(), FinishReason.STOP)


def test_any_text_stays_inside_its_event() -> None:
    text = "".join(map(chr, itertools.chain(range(1, 0x300), (0x2028, 0x2029, 0x1F642))))
    raw = encoder().delta(0, Delta(text=text))
    assert events(raw)[1]["delta"]["text"] == text


@pytest.mark.parametrize(
    ("error", "status", "kind", "words"),
    [
        (InvalidRequest("max_tokens: no"), 400, "invalid_request_error", "max_tokens: no"),
        (
            InvalidRequest(
                "Missing required parameter: 'x'.", param="x", code="missing_required_parameter"
            ),
            400,
            "invalid_request_error",
            "x: field required",
        ),
        (
            ContextTooLong(limit=100, prompt_tokens=120, reply_tokens=1),
            400,
            "invalid_request_error",
            "prompt is too long: 120 tokens > 100 maximum",
        ),
        (AuthenticationError("no key"), 401, "authentication_error", "no key"),
        (PermissionDenied("no"), 403, "permission_error", "no"),
        (
            ModelNotFound("x"),
            404,
            "not_found_error",
            "model: The model `x` does not exist or you do not have access to it.",
        ),
        (BodyTooLarge("big"), 413, "request_too_large", "big"),
        (TooManyRequests("slow", retry_after_s=2.1), 429, "rate_limit_error", "slow"),
        (EngineTimeout("10.0.0.1", engine="e"), 504, "timeout_error", None),
        (EngineRejected("10.0.0.1", engine="e"), 502, "api_error", None),
        (EngineUnavailable("10.0.0.1", engine="e"), 503, "api_error", None),
        (EngineOverloaded("10.0.0.1", engine="e"), 529, "overloaded_error", None),
        (StoreUnavailable("10.0.0.1"), 503, "api_error", None),
        (ConfigError("10.0.0.1"), 500, "api_error", None),
    ],
)
def test_errors_have_a_status_and_keep_secrets(
    error: NextstateError, status: int, kind: str, words: str | None
) -> None:
    found, headers, raw = AnthropicMessages().error(error, ID)
    body = json.loads(raw)
    assert set(body) == {"type", "error", "request_id"}
    assert set(body["error"]) == {"type", "message"}
    assert (found, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == "req_000000000000000000000000000000ff"
    assert body["error"]["message"] == words or words is None
    assert "10.0.0.1" not in body["error"]["message"]
    assert ("retry-after" in headers) is (status in (429, 503, 529))
    assert events(encoder().error_event(error)) == [{**body, "request_id": None}]


def test_a_prompt_that_leaves_no_room_is_too_long_as_well() -> None:
    error = ContextTooLong(limit=100, prompt_tokens=97, reply_tokens=1)
    message = json.loads(AnthropicMessages().error(error)[2])["error"]["message"]
    assert message == "prompt is too long: 97 tokens > 96 maximum"
