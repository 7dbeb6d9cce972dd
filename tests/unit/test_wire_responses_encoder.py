from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
import openai
import pytest
from hypothesis import given

from gateway.config import ServerSettings
from gateway.errors import (
    ContextTooLong,
    EngineOverloaded,
    EngineUnavailable,
    InvalidRequest,
    NextstateError,
)
from gateway.pipeline.turn import joined
from gateway.records import Delta, FinishReason, Reply, ToolCall, TurnRequest, Usage
from gateway.wire.base import TokenLogprob
from gateway.wire.openai_responses import OpenAIResponses
from gateway.wire.responses_encoder import ResponsesEncoder
from gateway.wire.responses_input import messages_of
from gateway.wire.responses_logprobs import Spelling
from gateway.wire.responses_output import output_items, reply_of
from tests.unit.told_replies import told

TURN = UUID("0199aaaa-0000-7000-8000-000000000001")
HEX = TURN.hex
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=4, reasoning_tokens=3)
LOGPROB = TokenLogprob(
    text="Hi", raw=b"Hi", logprob=-0.5, top=(TokenLogprob(text="H", raw=b"H", logprob=-0.2),)
)
SHOWN = {
    "token": "Hi",
    "logprob": -0.5,
    "bytes": [72, 105],
    "top_logprobs": [{"token": "H", "logprob": -0.2, "bytes": [72]}],
}

OPEN = Delta(call_index=0, call_id="c1", call_name="f")


def asked(**fields: Any) -> TurnRequest:
    body = json.dumps({"model": "m", "input": "Hi?", **fields}).encode()
    return OpenAIResponses().parse(body, {}, ServerSettings())


def encoder(**fields: Any) -> ResponsesEncoder:
    return OpenAIResponses().encoder(asked(**fields), TURN, 1_700_000_000, "m")


def streamed(
    deltas: Sequence[Delta], reason: FinishReason = FinishReason.STOP, **fields: Any
) -> bytes:
    writer = encoder(**fields)
    frames = writer.start(11) + b"".join(writer.delta(0, delta) for delta in deltas)
    return frames + writer.finish(0, reason) + writer.end(USAGE)


def read(frames: bytes) -> list[dict[str, Any]]:
    """The events, each checked for its frame and its place in the sequence."""
    events = []
    for number, frame in enumerate(frames.decode().removesuffix("\n\n").split("\n\n")):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event.pop("sequence_number") == number
        events.append(event)
    return events


def test_a_message_in_its_events() -> None:
    events = read(streamed([Delta(text="Hel"), Delta(text="lo")]))
    id_ = f"msg_{HEX}0000"
    at = {"item_id": id_, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    part = {**empty, "text": "Hello"}
    item = {"type": "message", "id": id_, "role": "assistant"}
    done = {**item, "status": "completed", "content": [part]}
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[2:-1] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **at, "part": empty},
        {"type": "response.output_text.delta", **at, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **at, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **at, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["id"], first["status"], first["output"]) == (f"resp_{HEX}", "in_progress", [])
    assert first["usage"] is None
    assert events[-1]["type"] == "response.completed"
    assert (last["status"], last["output"]) == ("completed", [done])
    assert last["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 16,
    }


KINDS: list[tuple[dict[str, Any], str, list[str]]] = [
    (
        {"reasoning": {"summary": "auto"}},
        "summary",
        [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
        ],
    ),
    (
        {},
        "content",
        [
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ],
    ),
]


@pytest.mark.parametrize(("fields", "where", "kinds"), KINDS)
def test_reasoning_is_an_item_of_its_own(
    fields: dict[str, Any], where: str, kinds: list[str]
) -> None:
    events = read(
        streamed([Delta(reasoning="Thi"), Delta(reasoning="nk"), Delta(text="Hi")], **fields)
    )
    assert [event["type"] for event in events[2:9]] == kinds
    assert {event["output_index"] for event in events[2:9]} == {0}
    reasoning, message = events[-1]["response"]["output"]
    assert reasoning["id"] == f"rs_{HEX}0000"
    assert [part["text"] for part in reasoning[where]] == ["Think"]
    assert events[8]["item"] == reasoning
    assert (message["id"], message["content"][0]["text"]) == (f"msg_{HEX}0001", "Hi")


def test_calls_follow_one_another() -> None:
    deltas = [
        Delta(text="So:"),
        OPEN,
        Delta(call_index=0, arguments='{"a":'),
        Delta(call_index=0, arguments="1}"),
        Delta(call_index=1, call_id="c2", call_name="g"),
        Delta(call_index=1, arguments="{}"),
    ]
    events = read(streamed(deltas))
    first = [event for event in events if event.get("output_index") == 1]
    id_ = f"fc_{HEX}0001"
    call = {"type": "function_call", "id": id_, "call_id": "c1", "name": "f"}
    assert first == [
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": {**call, "arguments": "", "status": "in_progress"},
        },
        *(
            {
                "type": "response.function_call_arguments.delta",
                "item_id": id_,
                "output_index": 1,
                "delta": delta,
            }
            for delta in ('{"a":', "1}")
        ),
        {
            "type": "response.function_call_arguments.done",
            "item_id": id_,
            "output_index": 1,
            "name": "f",
            "arguments": '{"a":1}',
        },
        {
            "type": "response.output_item.done",
            "output_index": 1,
            "item": {**call, "arguments": '{"a":1}', "status": "completed"},
        },
    ]
    # An item has ended before the next begins.
    order = [event["output_index"] for event in events if "output_index" in event]
    assert order == sorted(order)
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "message",
        "function_call",
        "function_call",
    ]


def test_a_delta_with_both_belongs_to_two_items() -> None:
    events = read(streamed([Delta(reasoning="a", text="b")]))
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


def test_text_after_a_call_is_a_message_again() -> None:
    deltas = [Delta(text="a"), OPEN, Delta(text="b")]
    [one, call, two] = read(streamed(deltas))[-1]["response"]["output"]
    assert (one["content"][0]["text"], two["content"][0]["text"]) == ("a", "b")
    assert (one["id"], call["id"], two["id"]) == (
        f"msg_{HEX}0000",
        f"fc_{HEX}0001",
        f"msg_{HEX}0002",
    )


def test_nothing_said_is_an_empty_message() -> None:
    events = read(streamed([]))
    [message] = events[-1]["response"]["output"]
    assert [part["text"] for part in message["content"]] == [""]
    assert "response.output_item.added" in [event["type"] for event in events]


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (FinishReason.STOP, "completed"),
        (FinishReason.TOOL_CALLS, "completed"),
        (FinishReason.LENGTH, "incomplete"),
    ],
)
def test_how_it_ended(reason: FinishReason, status: str) -> None:
    events = read(streamed([Delta(reasoning="a"), Delta(text="b")], reason))
    ends = [e["type"] for e in events if e["type"].startswith(f"response.{status}")]
    assert ends == [f"response.{status}"]
    response = events[-1]["response"]
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert [item["status"] for item in response["output"]] == ["completed", status]


def token(text: str | bytes) -> TokenLogprob:
    raw = text if isinstance(text, bytes) else text.encode()
    return TokenLogprob(text=raw.decode(errors="replace"), raw=raw, logprob=-0.5)


def test_logprobs_of_a_message() -> None:
    writer = encoder(include=["message.output_text.logprobs"])
    frames = writer.start() + writer.delta(0, Delta(text="Hi"), [LOGPROB])
    # What is held back comes with its text, and a token that is told in two parts once.
    frames += writer.delta(0, Delta(text=" yo"), [token(" yo<"), token("b")])
    frames += writer.delta(0, Delta(text="<b"))
    frames += writer.finish(0, FinishReason.STOP) + writer.end(USAGE)
    events = read(frames)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    told = [[one["token"] for one in event["logprobs"]] for event in deltas]
    assert told == [["Hi"], [" yo<"], ["b"]]
    assert deltas[0]["logprobs"] == [SHOWN]
    [message] = events[-1]["response"]["output"]
    content = message["content"]
    assert [one["token"] for one in content[0]["logprobs"]] == ["Hi", " yo<", "b"]
    done = [event for event in events if event["type"] == "response.output_text.done"]
    assert [event["logprobs"] for event in done] == [content[0]["logprobs"]]


#: A reply in bytes, as it was sampled, and which of its tokens spell which message.
SAMPLED = [b"<think>", b"\n", b"Hi", b"</think>", b"\n\n", b"Hi", b" y", b"ou", b"<tool_call>",
           b"f", b"{}", b"</tool_call>", b"\nBye", b" \xc3", b"<end>"]  # fmt: skip
TOLD = [
    Delta(reasoning="H"),
    Delta(reasoning="i"),
    Delta(text="Hi"),
    Delta(text=" you"),
    OPEN,
    Delta(call_index=0, arguments="{}"),
    Delta(text="Bye \ufffd"),
]
#: How many of the tokens have come by each of these deltas.
CHUNKS = [(3, 3, 7, 8, 10, 12, 14), (3, 4, 6, 9, 12, 12, 14), (14,) * 7]


@pytest.mark.parametrize("chunks", CHUNKS)
def test_each_message_tells_its_own_tokens_however_they_come(chunks: tuple[int, ...]) -> None:
    tokens = [token(raw) for raw in SAMPLED]
    fields = {"include": ["message.output_text.logprobs"]}
    writer = encoder(**fields)
    frames, before = writer.start(), 0
    for delta, upto in zip(TOLD, chunks, strict=True):
        frames += writer.delta(0, delta, tokens[before:upto])
        before = upto
    frames += writer.finish(0, FinishReason.LENGTH) + writer.end(USAGE)
    events = read(frames)
    final = events[-1]["response"]
    _, first, _, last = final["output"]
    found = [
        [bytes(one["bytes"]) for one in message["content"][0]["logprobs"]]
        for message in (first, last)
    ]
    assert found == [[b"Hi", b" y", b"ou"], [b"\nBye", b" \xc3"]]
    # Those of its deltas are the same, none twice.
    by_delta: dict[str, list[bytes]] = {first["id"]: [], last["id"]: []}
    for event in events:
        if event["type"] == "response.output_text.delta":
            by_delta[event["item_id"]] += [bytes(one["bytes"]) for one in event["logprobs"]]
    assert [*by_delta.values()] == found
    # A whole reply comes with the token that ended it, too.
    reply = joined(TOLD).ordered(TOLD)
    whole = encoder(**fields).whole([reply], [FinishReason.LENGTH], USAGE, [tokens])
    assert json.loads(whole) == final
    again = reply_of(json.loads(json.dumps(reply.stored())))
    items = output_items(TURN, again, FinishReason.LENGTH, logprobs=tokens)
    assert items == final["output"]


def test_tokens_of_a_vocabulary_of_pieces_are_found() -> None:
    tokens = [token(raw) for raw in ("<think>", "\u2581Hi", "\u2581yo", "u<0x", "<0xC3>", "<0xA9>")]
    fields = {"include": ["message.output_text.logprobs"]}
    reply = Reply(text="Hi you<0x\u00e9")
    whole = encoder(**fields).whole([reply], [FinishReason.STOP], USAGE, [tokens])
    [message] = json.loads(whole)["output"]
    told = [one["token"] for one in message["content"][0]["logprobs"]]
    assert told == ["\u2581Hi", "\u2581yo", "u<0x", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize(
    ("raw", "text", "told"),
    [
        ([b"a", b"\xc3", b"b"], "a\ufffdb", slice(None)),
        ([b"<x>", b"\xe2\x82", b"\xff", b"b", b"<e>"], "\ufffd\ufffdb", slice(1, 4)),
        ([b"a", b"\xe2", b"\x82", b"<e>"], "a\ufffd", slice(0, 3)),
        ([b"a\xc3", b"\xc3\xa9", b"c"], "a\ufffd\u00e9c", slice(None)),
        # The model may write that sign itself.
        ([b"a", b"\xef\xbf", b"\xbd", b"b"], "a\ufffdb", slice(None)),
        # Of two places the one where nothing else stands in between.
        ([b"a", b"x\xc3", b"a", b"\xc3", b"b"], "a\ufffdb", slice(2, 5)),
        ([b"a", b"x", b"b"], "a\ufffdb", slice(0, 0)),
        ([b"a", b"b"], "a\ufffdb", slice(0, 0)),
    ],
)
def test_bytes_that_are_no_character(raw: list[bytes], text: str, told: slice) -> None:
    tokens = [token(one) for one in raw]
    assert Spelling(tokens).take(text) == tokens[told]


def test_of_a_text_that_is_not_as_it_was_sampled_no_tokens_are_told() -> None:
    fields = {"include": ["message.output_text.logprobs"]}
    whole = encoder(**fields).whole(
        [Reply(text="Hello")], [FinishReason.STOP], USAGE, [[token("Bye")]]
    )
    [message] = json.loads(whole)["output"]
    assert message["content"][0]["logprobs"] == []


def test_nothing_said_opens_nothing() -> None:
    writer = encoder(include=["message.output_text.logprobs"])
    assert writer.delta(0, Delta(), [LOGPROB]) == b""
    writer.delta(0, OPEN)
    assert writer.delta(0, Delta(), [LOGPROB]) == b""


REPLY = Reply(
    text="Hi",
    reasoning="Think",
    tool_calls=(ToolCall(id="c1", name="f", arguments='{"a":1}'),),
)


def test_whole_and_streamed_say_the_same() -> None:
    deltas = [
        Delta(reasoning="Think"),
        Delta(text="H"),
        Delta(text="i"),
        OPEN,
        Delta(call_index=0, arguments='{"a":1}'),
    ]
    for fields in ({}, {"reasoning": {"summary": "detailed"}}):
        whole = encoder(**fields).whole([REPLY], [FinishReason.TOOL_CALLS], USAGE)
        assert json.loads(whole) == read(streamed(deltas, **fields))[-1]["response"]


@given(deltas=told())
def test_however_it_is_told_whole_streamed_and_stored_are_the_same(deltas: list[Delta]) -> None:
    for reason in (FinishReason.STOP, FinishReason.LENGTH):
        final = read(streamed(deltas, reason))[-1]["response"]
        reply = joined(deltas).ordered(deltas)
        assert json.loads(encoder().whole([reply], [reason], USAGE)) == final
        again = reply_of(json.loads(json.dumps(reply.stored())))
        assert output_items(TURN, again, reason) == final["output"]
        # Sent back, the items are the one message that is stored.
        [message] = messages_of(final["output"], 1000)
        assert reply_of(message) == joined(deltas)


def test_what_was_asked_is_repeated() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    said: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [tool, {"type": "web_search"}],
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "max_output_tokens": 9,
        "parallel_tool_calls": False,
        "previous_response_id": f"resp_{'0' * 32}",
        "store": False,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low", "summary": None},
    }
    response = json.loads(encoder(**said).whole([Reply()], [FinishReason.STOP], USAGE))
    assert {name: response[name] for name in said} == said
    assert (response["tool_choice"], response["top_p"]) == ("auto", 1.0)


def test_a_call_names_its_namespace_again() -> None:
    tools = [
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "function", "name": "g"},
    ]
    deltas = [OPEN, Delta(call_index=1, call_id="c2", call_name="g")]
    one, two = read(streamed(deltas, tools=tools))[-1]["response"]["output"]
    assert (one["namespace"], "namespace" in two) == ("n", False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnavailable("secret address", engine="e"), "server_error"),
        (NextstateError("secret"), "server_error"),
        (EngineOverloaded("full", engine="e"), "rate_limit_exceeded"),
        (ContextTooLong(limit=1, prompt_tokens=2, reply_tokens=3), "context_length_exceeded"),
        (InvalidRequest("no"), "invalid_prompt"),
    ],
)
def test_a_broken_stream_fails_once(error: NextstateError, code: str) -> None:
    late = encoder()
    frames = late.start() + late.delta(0, Delta(text="Hel")) + late.error_event(error)
    for events, said in ((read(frames), ["Hel"]), (read(encoder().error_event(error)), [])):
        assert events[0]["type"] == "response.created"
        ends = ("response.completed", "response.incomplete", "response.failed")
        assert [e["type"] for e in events if e["type"] in ends] == ["response.failed"]
        response = events[-1]["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", code)
        assert "secret" not in response["error"]["message"]
        assert [item["content"][0]["text"] for item in response["output"]] == said


@pytest.mark.parametrize("summary", [None, "auto"])
def test_the_official_client_puts_the_stream_together(summary: str | None) -> None:
    deltas = [
        Delta(reasoning="Thi"),
        Delta(reasoning="nk"),
        Delta(text="Hel"),
        Delta(text="lo"),
        OPEN,
        Delta(call_index=0, arguments='{"a":'),
        Delta(call_index=0, arguments="1}"),
    ]
    tool: Any = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    body = streamed(deltas, tools=[tool], reasoning={"summary": summary})
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=body))
    with (
        httpx.Client(transport=transport) as http,
        openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=http) as client,
        client.responses.stream(model="m", input="Hi?", tools=[tool]) as stream,
    ):
        events = list(stream)
        final = stream.get_final_response()
    texts = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert texts == ["Hel", "Hello"]
    calls = [e.snapshot for e in events if e.type == "response.function_call_arguments.delta"]
    assert calls == ['{"a":', '{"a":1}']
    assert (final.output_text, final.status) == ("Hello", "completed")
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.usage is not None
    assert final.usage.total_tokens == 16
    assert final.output[0].model_dump(exclude_unset=True, mode="json", warnings="error")
