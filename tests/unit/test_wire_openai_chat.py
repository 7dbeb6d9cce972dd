from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest
from gateway.records import Sampling, TurnKind, TurnRequest
from gateway.resolve import head_hash, prefixes, request_hash, seed
from gateway.tokens.template import for_template
from gateway.wire.openai_chat import OpenAIChat
from tests.examples import examples

CHAT = OpenAIChat()
LIMITS = ServerSettings(max_messages=5)
USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def parse(
    headers: Mapping[str, str] | None = None, /, *, raw: bytes | None = None, **fields: Any
) -> TurnRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return CHAT.parse(raw if raw is not None else json.dumps(body).encode(), headers or {}, LIMITS)


def refused(*args: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(*args, **fields)
    return caught.value


def test_a_small_request_leaves_open_what_it_does_not_say() -> None:
    assert parse() == TurnRequest(
        dialect="openai_chat", model="m", messages=(USER,), sampling=Sampling()
    )


def test_a_full_request_is_read_in_full() -> None:
    found = parse(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        n=2,
        max_tokens=5,
        max_completion_tokens=7,
        stop=["a", "b"],
        seed=-3,
        frequency_penalty=-2,
        presence_penalty=2,
        repetition_penalty=1.1,
        logit_bias={"17": -100, "5": 1.5},
        logprobs=True,
        top_logprobs=0,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        tools=[TOOL],
        tool_choice="none",
        user="u",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}},
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        store=True,
        never_heard_of={"x": [1]},
    )
    assert found == TurnRequest(
        dialect="openai_chat",
        model="m",
        messages=(USER,),
        sampling=Sampling(
            temperature=0,
            top_p=0.5,
            top_k=40,
            min_p=0.1,
            frequency_penalty=-2,
            presence_penalty=2,
            repetition_penalty=1.1,
            logit_bias={17: -100, 5: 1.5},
            seed=-3,
            stop=("a", "b"),
            max_tokens=7,
            grammar={"json_schema": '{"a":1}'},
        ),
        tools=(TOOL,),
        stream=True,
        include_usage=True,
        tool_choice="none",
        choices=2,
        top_logprobs=0,
        user="u",
        template_kwargs={"enable_thinking": False, "reasoning_effort": "low"},
    )


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"stop": "x"}, Sampling(stop=("x",))),
        ({"top_k": -1}, Sampling()),
        ({"temperature": None, "stop": None, "seed": None}, Sampling()),
        ({"response_format": {"type": "text"}}, Sampling()),
        (
            {"response_format": {"type": "json_object"}},
            Sampling(grammar={"json_schema": '{"type":"object"}'}),
        ),
        ({"max_tokens": 9}, Sampling(max_tokens=9)),
    ],
)
def test_other_ways_to_say_it(fields: dict[str, Any], sampling: Sampling) -> None:
    assert parse(**fields).sampling == sampling


def test_messages_of_every_role_are_kept_as_they_are() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "é 🙂", "name": "n", "extra": {"b": 1}},
        {"role": "assistant", "tool_calls": [CALL], "content": None, "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    assert list(parse(messages=messages).messages) == messages


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**30}, "seed"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL] * 513}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
        ({"functions": [{"name": "f"}], "tool_choice": "none"}, "functions"),
        ({"functions": [{"name": "f"}] * 513}, "functions"),
        ({"functions": {}}, "functions"),
        ({"functions": [{"name": "f"}, {}]}, "functions[1].name"),
        ({"functions": [{"name": "f", "parameters": "x"}]}, "functions[0].parameters"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": 1}}, "function_call.name"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"tools": [TOOL], "function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {}}, "response_format.type"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [USER] * 6}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": 1}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": {"a": 1}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].tool_call_id"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{**USER, "function_call": {"1": 2}}]}, "messages[0].function_call"),
        ({"messages": [{**USER, "reasoning_content": [1]}]}, "messages[0].reasoning_content"),
        (
            {"messages": [{**USER, "content": [{"type": "text", "text": "", "refusal": 1}]}]},
            "messages[0].content[0].refusal",
        ),
        ({"messages": [{**USER, "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": None}]}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.code
    assert f"'{param}'" in error.message or error.code.startswith("unsupported")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b"[]", "invalid_type"),
        (b"{}", "missing_required_parameter"),
        (b'{"model":"m","messages":[],"x":' + b"[" * 9999 + b"]" * 9999 + b"}", "invalid_value"),
        (
            b'{"model":"m","messages":[{"role":"user","content":"","x":' + b"[" * 9999 + b"]}",
            "invalid_value",
        ),
        (
            b'{"model":"m","messages":[{"role":"user","content":"","x":'
            + b"[" * 300
            + b"]" * 300
            + b"}]}",
            "invalid_value",
        ),
    ],
)
def test_bodies_that_cannot_be_read(raw: bytes, code: str) -> None:
    assert refused(raw=raw).code == code


def test_a_nul_is_text_like_any_other() -> None:
    """A model can sample one, and its client sends it back."""
    raw = b'{"model":"m","messages":[{"role":"user","content":"a\\u0000b"}]}'
    assert parse(raw=raw).messages[0]["content"] == "a\0b"


def test_headers_say_who_asks() -> None:
    found = parse(
        {
            "x-session-id": " s-1 ",
            "x-turn-type": "Side",
            "x-session-done": "true",
            "x-stainless-retry-count": "2",
            "idempotency-key": "k",
            "user-agent": "OpenAI/Python 3.57\x00",
        }
    )
    assert (found.session_name, found.declared_kind, found.turn_type) == (
        "s-1",
        TurnKind.SIDE,
        "Side",
    )
    assert (found.session_done, found.retry_count, found.idempotency_key) == (True, 2, "k")
    assert found.client == "OpenAI/Python 3.57"


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, None),
        ({"x-session-id": "  "}, None),
        ({"x-session-id": "a", "session_id": "b"}, "a"),
        ({"x-claude-code-session-id": "a"}, "a"),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"}, "a/b"),
        ({"session-id": "a", "thread-id": "a"}, "a"),
        ({"session-id": "a", "thread-id": "b"}, "a/b"),
        ({"session_id": "a"}, "a"),
        ({"x-opencode-session": "a"}, "a"),
        ({"x-session-affinity": "a"}, "a"),
        ({"thread-id": "a"}, None),
        ({"x-session-id": "é" * 100}, "é" * 100),
    ],
)
def test_known_agents_name_their_sessions(headers: dict[str, str], name: str | None) -> None:
    assert parse(headers).session_name == name


@pytest.mark.parametrize(
    "headers",
    [
        {"x-session-id": "a" * 201},
        {"x-session-id": "é" * 101},
        {"x-session-id": "a\x00b"},
        {"x-session-id": "a\x7fb"},
        {"session_id": "a\tb"},
        {"session-id": "a" * 150, "thread-id": "b" * 150},
        {"idempotency-key": "a" * 201},
    ],
)
def test_ids_that_cannot_be_names_are_refused(headers: dict[str, str]) -> None:
    assert refused(headers).code == "invalid_id"


@pytest.mark.parametrize("value", ["x", "-1", "", "1.5", "\u00b2"])
def test_a_retry_count_that_is_none_is_no_retry(value: str) -> None:
    assert parse({"x-stainless-retry-count": value}).retry_count == 0


@pytest.mark.parametrize("value", ["planner", ""])
def test_other_turn_types_are_kept_for_patterns(value: str) -> None:
    found = parse({"x-turn-type": value})
    assert (found.declared_kind, found.turn_type) == (None, value)


leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
tree = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
part = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "refusal"]) | tree}, optional={"text": tree}
)
function = st.fixed_dictionaries(
    {}, optional={"name": st.text(max_size=3) | tree, "arguments": st.just("{}") | st.text() | tree}
)
_ROLES = ["user", "assistant", "tool", "function", "system", "developer"]
message = st.fixed_dictionaries(
    {"role": st.sampled_from(_ROLES) | tree},
    optional={
        "content": st.text(max_size=5) | st.lists(part, max_size=2) | tree,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {}, optional={"id": st.text(max_size=3) | tree, "function": function | tree}
            ),
            max_size=2,
        )
        | tree,
        "function_call": function | tree,
        "name": tree,
        "tool_call_id": st.text(max_size=3) | tree,
    },
)
body = st.fixed_dictionaries(
    {"model": st.just("m") | leaf, "messages": st.lists(message, max_size=3) | tree},
    optional=dict.fromkeys(
        ("temperature", "stop", "tools", "logit_bias", "response_format", "n", "stream"), tree
    )
    | {"functions": st.lists(function, max_size=2) | tree, "function_call": function | tree},
)


@examples(400)
@given(body=body | tree)
def test_any_json_is_served_or_refused(body: Any) -> None:
    try:
        found = CHAT.parse(msgspec.json.encode(body), {}, LIMITS)
    except InvalidRequest:
        return
    # What passes holds the shapes that everything behind the edge relies on.
    assert prefixes(found.messages, seed(UUID(int=1), found.model)) is not None
    assert len(request_hash(found.messages, found.tools)) == 32
    assert len(head_hash(found.messages, found.tools)) == 32
    assert all(isinstance(for_template(message)["content"], str) for message in found.messages)


@examples(200)
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_refused(raw: bytes) -> None:
    assert refused(raw=raw).status == 400
