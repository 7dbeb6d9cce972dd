"""What is stored of a request is small, and gives back what the request said."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from gateway.config import ServerSettings
from gateway.records import (
    Conversation,
    Exchanged,
    FinishReason,
    Reply,
    ToolCall,
    TurnRequest,
    Usage,
)
from gateway.wire.openai_responses import OpenAIResponses
from gateway.wire.responses_output import stored_response
from gateway.wire.responses_stored import MOST_BYTES, restored

TURN = UUID("0199aaaa-0000-7000-8000-000000000001")
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=4, reasoning_tokens=3)
SCHEMA = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1.5}}}
PLAIN = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
#: Every field that a response repeats, none with its default.
EVERYTHING: dict[str, Any] = {
    "instructions": "Be brief. ",
    "max_output_tokens": 9,
    "metadata": {"a": "b", "type": "c"},
    "parallel_tool_calls": False,
    "previous_response_id": f"resp_{'0' * 32}",
    "prompt_cache_key": "cached",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "person",
    "store": True,
    "temperature": 0.25,
    "text": {
        "format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    },
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [
        {**PLAIN, "description": "Does."},
        {"type": "web_search", "filters": {"allowed_domains": ["x"]}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
    ],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "somebody",
}
TOOLS = [
    [],
    [PLAIN],
    [PLAIN, {**PLAIN, "name": "g"}],
    [PLAIN, {**PLAIN, "name": "g", "strict": False}],
    [PLAIN, {**PLAIN, "strict": None, "parameters": {}}],
    [{"type": "function", "name": "f"}, {**PLAIN, "name": "g", "description": ""}],
    [{"type": "function", "name": "f", "parameters": None, "description": None, "more": [1]}],
    [{"type": "web_search"}, PLAIN],
    [{"type": "mcp", "server_label": "s"}],
    [{"type": "namespace", "name": "n"}, {"type": "namespace", "name": "m", "tools": None}],
    [
        PLAIN,
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [
                {**PLAIN, "description": "another"},
                {**PLAIN, "name": "g"},
                {"type": "namespace", "name": "deeper", "tools": 5},
                {"name": "no type"},
            ],
        },
        {"type": "namespace", "name": "m", "tools": [{"type": "function", "name": "g"}]},
    ],
]


def asked(**fields: Any) -> TurnRequest:
    body = json.dumps({"model": "m", "input": "Hi?", **fields}).encode()
    return OpenAIResponses().parse(body, {}, ServerSettings())


def fields_of(request: TurnRequest) -> dict[str, Any]:
    """As they come back from a column."""
    return dict(json.loads(json.dumps(request.response_fields)))


def conversation(request: TurnRequest, reply: Reply, **values: Any) -> Conversation:
    turn = Exchanged(turn_id=TURN, messages=request.messages, reply=reply.stored())
    return Conversation(
        turn_id=TURN,
        model="m",
        created_at=1_700_000_000.5,
        finish_reason=FinishReason.STOP,
        sampling={},
        tools=request.tools,
        usage=USAGE,
        turns=(turn,),
        **values,
    )


@pytest.mark.parametrize("tools", TOOLS)
def test_tools_come_back_as_they_were_sent(tools: list[Any]) -> None:
    request = asked(tools=tools)
    assert restored(fields_of(request), request.tools) == {"tools": tools}


def test_tools_that_may_not_be_called_come_back_all_the_same() -> None:
    tools = [PLAIN, {**PLAIN, "name": "g"}]
    only = {"type": "function", "name": "g"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [only]}
    request = asked(tools=tools, tool_choice=choice)
    assert restored(fields_of(request), request.tools) == {"tools": tools, "tool_choice": choice}


def test_tools_that_are_stored_are_not_stored_again() -> None:
    described = [{**PLAIN, "name": f"f{n}", "description": "d" * 900} for n in range(100)]
    assert asked(tools=described).response_fields == {"tools": {"strict": True}}
    mixed = asked(tools=[*described, {"type": "web_search"}]).response_fields
    assert len(json.dumps(mixed)) < 100 * 32


def test_a_stored_response_is_the_one_that_was_told() -> None:
    request = asked(**EVERYTHING)
    reply = Reply(
        text="Hi",
        reasoning="Hm.",
        tool_calls=(
            ToolCall(id="c1", name="g", arguments="{}"),
            ToolCall(id="c2", name="f", arguments="{}"),
        ),
    )
    encoder = OpenAIResponses().encoder(request, TURN, 1_700_000_000, "m")
    whole = json.loads(encoder.whole([reply], [FinishReason.STOP], USAGE))
    assert {name: whole[name] for name in EVERYTHING} == EVERYTHING
    reasoning, _, call, plain = whole["output"]
    assert (reasoning["summary"][0]["text"], "content" in reasoning) == ("Hm.", False)
    assert (call["namespace"], "namespace" in plain) == ("n", False)
    found = conversation(request, reply, response_fields=fields_of(request))
    assert json.loads(json.dumps(stored_response(found))) == whole
    # The ids of a redacted turn, or of an engine of text, tell no lengths.
    told = {**fields_of(request), "usage": [70, 8]}
    usage = stored_response(conversation(request, reply, response_fields=told))["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (70, 8, 78)


def test_of_a_turn_of_an_earlier_build_there_is_what_columns_tell() -> None:
    request = asked(instructions="Be brief.", tools=[PLAIN], metadata={"a": "b"})
    found = stored_response(conversation(request, Reply(text="Hi")))
    assert (found["instructions"], found["metadata"]) == ("Be brief.", {})
    assert found["tools"] == [{**PLAIN, "description": None, "strict": False}]


def test_nothing_is_stored_of_what_its_client_will_not_read() -> None:
    assert asked(**{**EVERYTHING, "store": False}).response_fields is None
    assert asked().response_fields == {}


def test_the_largest_fields_are_left_out_where_there_is_too_much() -> None:
    large = {"type": "json_schema", "name": "s", "schema": {"description": "x" * MOST_BYTES}}
    metadata = {f"k{n}": "é" * 512 for n in range(16)}
    found = asked(text={"format": large}, metadata=metadata, user="u").response_fields
    assert found == {"metadata": metadata, "user": "u"}


def test_long_instructions_are_left_to_the_messages() -> None:
    found = asked(instructions="x" * (MOST_BYTES - 10), user="u").response_fields
    assert found == {"instructions": "x" * (MOST_BYTES - 10), "user": "u"}
    found = asked(instructions="x" * MOST_BYTES, user="u").response_fields
    assert found == {"instructions": True, "user": "u"}


def test_numbers_that_no_spool_holds_are_left_out() -> None:
    form = {"type": "json_schema", "name": "s", "schema": {"maximum": 2**70}}
    found = asked(text={"format": form}, user="u").response_fields
    assert found == {"user": "u"}
