"""The old `functions` of chat completions: requests in the form of tools, replies in the old."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.config import ServerSettings
from gateway.records import Delta, FinishReason, Message, Reply, ToolCall, TurnRequest, Usage
from gateway.resolve import chain, chained, seed
from gateway.wire.base import TokenLogprob
from gateway.wire.chat_functions import functions_as_calls
from gateway.wire.openai_chat import OpenAIChat

CHAT = OpenAIChat()
ID = UUID(int=255)
USAGE = Usage(prompt_tokens=7, completion_tokens=5)
USER: Message = {"role": "user", "content": "Hi"}
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}, "x": 1}
BUY = {"name": "buy"}
CALL = {"name": "look", "arguments": '{"city": "Oslo"}'}
CALLED: Message = {"role": "assistant", "content": None, "function_call": CALL}
RESULT: Message = {"role": "function", "name": "look", "content": "20 C"}


def parse(**fields: Any) -> TurnRequest:
    body = {"model": "m", "messages": [USER], "functions": [LOOK, BUY], **fields}
    return CHAT.parse(json.dumps(body).encode(), {}, ServerSettings())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", ())),
        ("auto", ("auto", ())),
        ("none", ("none", ())),
        ({"name": "buy"}, ("required", ("buy",))),
    ],
)
def test_functions_are_tools(choice: Any, expected: tuple[str, tuple[str, ...]]) -> None:
    found = parse(function_call=choice, tools=[], tool_choice="auto")
    assert found.tools == (
        {"type": "function", "function": LOOK},
        {"type": "function", "function": BUY},
    )
    assert (found.tool_choice, found.allowed_tools) == expected
    assert not found.parallel_tool_calls


@pytest.mark.parametrize("functions", [None, []])
@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_without_functions_nothing_is_of_the_old_form(functions: Any, choice: Any) -> None:
    tool = {"type": "function", "function": LOOK}
    found = parse(functions=functions, function_call=choice, tools=[tool])
    assert (found.tools, found.tool_choice, found.parallel_tool_calls) == ((tool,), "auto", True)
    whole = CHAT.encoder(found, ID, 7, "m").whole(
        [Reply(tool_calls=(ToolCall(id="c", name="look", arguments="{}"),))],
        [FinishReason.TOOL_CALLS],
        USAGE,
    )
    [choice] = json.loads(whole)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert "function_call" not in choice["message"]


def test_calls_and_results_are_those_of_tools() -> None:
    messages: list[Message] = [
        USER,
        CALLED,
        RESULT,
        {"role": "assistant", "content": "So.", "function_call": None},
        {**CALLED, "tool_calls": None},
        {**RESULT, "content": None},
    ]
    first, second = (
        {"id": f"call0000{number}", "type": "function", "function": CALL} for number in (1, 2)
    )
    told = {"role": "tool", "name": "look"}
    expected = (
        USER,
        {"role": "assistant", "content": None, "tool_calls": [first]},
        {**told, "tool_call_id": "call00001", "content": "20 C"},
        messages[3],
        {"role": "assistant", "content": None, "tool_calls": [second]},
        {**told, "tool_call_id": "call00002", "content": ""},
    )
    assert functions_as_calls(messages) == expected
    assert parse(messages=messages).messages == expected
    # With or without functions that may be called now.
    assert parse(messages=messages, functions=None).messages == expected


def test_a_result_of_no_call_is_one_of_a_tool_all_the_same() -> None:
    assert functions_as_calls([USER, RESULT])[1] == {
        "role": "tool",
        "name": "look",
        "tool_call_id": "call00000",
        "content": "20 C",
    }


def test_what_comes_back_is_known_as_what_was_stored() -> None:
    """Its client was told no id, and may have written the arguments anew."""
    start = seed(ID, "m")
    call = ToolCall(id="function_a", name="look", arguments='{"city": "Oslo"}')
    stored = chained(chain([USER], start)[-1], Reply(tool_calls=(call,)).stored())
    again = {**CALLED, "function_call": {**CALL, "arguments": '{"city":"Oslo"}'}}
    for reply in (CALLED, again):
        assert chain(parse(messages=[USER, reply, RESULT]).messages, start)[1] == stored


def test_a_whole_reply() -> None:
    calls = tuple(
        ToolCall(id=f"function_{name}", name=name, arguments='{"a": 1}') for name in ("look", "buy")
    )
    encoder = CHAT.encoder(parse(), ID, 7, "m")
    body = encoder.whole(
        [Reply(text="Let me see.", tool_calls=calls)], [FinishReason.TOOL_CALLS], USAGE
    )
    [choice] = ChatCompletion.model_validate_json(body).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.content == "Let me see."
    assert choice.message.tool_calls is None
    assert choice.message.function_call is not None
    assert choice.message.function_call.to_dict() == {"name": "look", "arguments": '{"a": 1}'}
    [plain] = json.loads(encoder.whole([Reply(text="No.")], [FinishReason.STOP], USAGE))["choices"]
    assert plain["finish_reason"] == "stop"
    assert plain["message"] == {"role": "assistant", "content": "No.", "refusal": None}


def test_a_stream() -> None:
    encoder = CHAT.encoder(parse(stream=True), ID, 7, "m")
    spoken = TokenLogprob(text="x", raw=b"x", logprob=-1.0)
    frames = [
        encoder.start(),
        encoder.delta(0, Delta(text="So. ")),
        encoder.delta(0, Delta(call_index=0, call_id="function_a", call_name="look")),
        encoder.delta(0, Delta(call_index=0, arguments='{"a"')),
        encoder.delta(0, Delta(call_index=0, arguments=": 1}")),
        # No second call can be told, and what was asked for of its tokens is.
        encoder.delta(0, Delta(call_index=1, call_id="function_b", call_name="buy")),
        encoder.delta(0, Delta(call_index=1, arguments="{}"), [spoken]),
        encoder.finish(0, FinishReason.TOOL_CALLS),
    ]
    assert frames.pop(5) == b""
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    choices = [ChatCompletionChunk.model_validate(chunk).choices[0] for chunk in chunks]
    assert [choice.delta.to_dict(exclude_unset=True) for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "So. "},
        {"function_call": {"name": "look", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ": 1}"}},
        {},
        {},
    ]
    assert [choice.finish_reason for choice in choices] == [None] * 6 + ["function_call"]
    assert choices[5].logprobs is not None
