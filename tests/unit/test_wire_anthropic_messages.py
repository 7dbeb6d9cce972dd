from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest
from gateway.records import Sampling, TurnKind, TurnRequest
from gateway.wire.anthropic_messages import AnthropicMessages

SMALLEST: dict[str, Any] = {
    "model": "m",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "hi"}],
}
ASK = {"role": "user", "content": "hi"}
TOOLS = [{"name": "f", "input_schema": {}}, {"name": "h", "input_schema": {}}]
EDITS = {"command", "path", "file_text", "old_str", "insert_line", "view_range"}


def parse(headers: dict[str, str] | None = None, **fields: Any) -> TurnRequest:
    body = json.dumps({**SMALLEST, **fields}).encode()
    return AnthropicMessages().parse(body, headers or {}, ServerSettings(max_messages=6))


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def test_the_smallest_request() -> None:
    assert parse() == TurnRequest(
        dialect="anthropic_messages",
        model="m",
        messages=(ASK,),
        sampling=Sampling(max_tokens=50),
        include_usage=True,
        call_prefix="toolu_",
        shorten=True,
    )


def test_every_field_that_is_read() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = parse(
        {
            "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
            "x-claude-code-session-id": "s-1",
            "x-claude-code-agent-id": "a-2",
            "x-stainless-retry-count": "2",
            "x-turn-type": "side",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "unknown-1",
        },
        system="Be brief.",
        tools=[
            {"name": "weather", "description": "Tells.", "input_schema": schema},
            {"name": "bare", "type": "custom", "input_schema": {}, "cache_control": {"type": "x"}},
        ],
        tool_choice={"type": "none"},
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END", "\n\nHuman:"],
        thinking={"type": "enabled", "budget_tokens": 2000},
        metadata={"user_id": "u1"},
        service_tier="auto",
        betas=["x"],
        context_management={"edits": []},
    )
    assert request == TurnRequest(
        dialect="anthropic_messages",
        model="m",
        messages=({"role": "system", "content": "Be brief."}, ASK),
        sampling=Sampling(
            temperature=0.5, top_p=0.9, top_k=40, stop=("END", "\n\nHuman:"), max_tokens=50
        ),
        tools=(
            {
                "type": "function",
                "function": {"name": "weather", "description": "Tells.", "parameters": schema},
            },
            {
                "type": "function",
                "function": {"name": "bare", "description": "", "parameters": {}},
            },
        ),
        stream=True,
        include_usage=True,
        tool_choice="none",
        call_prefix="toolu_",
        shorten=True,
        session_name="s-1/a-2",
        parent_session_name="s-1",
        marker="subagent",
        declared_kind=TurnKind.SIDE,
        turn_type="side",
        retry_count=2,
        user="u1",
        client="claude-cli/2.1.197 (external, sdk-cli)",
        template_kwargs={"enable_thinking": True},
    )


def test_a_schema_for_the_reply_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "schema": schema}
    request = parse(output_config={"effort": "max", "format": form}, thinking={"type": "disabled"})
    assert request.sampling.grammar is not None
    assert json.loads(request.sampling.grammar["json_schema"]) == schema
    assert request.template_kwargs == {"enable_thinking": False, "reasoning_effort": "high"}
    assert parse(output_format=form).sampling.grammar == request.sampling.grammar
    assert refused(output_config={"format": {"type": "xml"}}).param == "output_config.format"


CLAUDE_CODE = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s-9"})


@pytest.mark.parametrize(
    ("told", "user", "session"),
    [
        ("someone", "someone", None),
        (CLAUDE_CODE, "d" * 64, "s-9"),
        (json.dumps({"account_uuid": "a-1", "device_id": "d"}), "a-1", None),
        ('{"session_id":"' + "s" * 300 + '"}', '{"session_id":"' + "s" * 300 + '"}', None),
        ('{"device_id":"d","session_id":"two\\nlines"}', "d", None),
        ("user_0a1b_account_aaaa-1_session_bbbb-2", "aaaa-1", "bbbb-2"),
        ("user_0a1b_account__session_bbbb-2", "0a1b", "bbbb-2"),
        ("{no json", "{no json", None),
    ],
)
def test_metadata_names_a_person_and_sometimes_a_session(
    told: str, user: str, session: str | None
) -> None:
    request = parse(metadata={"user_id": told})
    assert (request.user, request.session_name) == (user, session)


def test_a_header_names_the_session_before_metadata_does() -> None:
    headers = {"x-claude-code-session-id": "s-9"}
    assert parse(headers, metadata={"user_id": CLAUDE_CODE}).session_name == "s-9"
    assert parse({"x-session-id": "h"}, metadata={"user_id": CLAUDE_CODE}).session_name == "h"


def test_counting_needs_no_max_tokens() -> None:
    body = {"model": "m", "messages": [ASK], "system": "Be brief."}
    request = AnthropicMessages().parse_count(json.dumps(body).encode(), {}, ServerSettings())
    assert request.messages == ({"role": "system", "content": "Be brief."}, ASK)


@pytest.mark.parametrize(
    ("choice", "required", "allowed", "parallel"),
    [
        (None, "auto", (), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", (), False),
        ({"type": "none"}, "none", (), True),
        ({"type": "any"}, "required", (), True),
        ({"type": "tool", "name": "h"}, "required", ("h",), True),
    ],
)
def test_which_tools_are_called(
    choice: dict[str, Any] | None, required: str, allowed: tuple[str, ...], parallel: bool
) -> None:
    request = parse(tools=TOOLS, tool_choice=choice)
    assert (request.tool_choice, request.allowed_tools) == (required, allowed)
    assert request.parallel_tool_calls is parallel


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("bash_20250124", "bash", {"command", "restart"}),
        ("text_editor_20250124", "str_replace_editor", {*EDITS, "new_str"}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {*EDITS, "new_str", "insert_text"}),
    ],
)
def test_what_models_are_told_of_tools_that_have_a_type(
    kind: str, name: str, fields: set[str]
) -> None:
    named = {"type": kind, "name": name, "max_characters": 9}
    choice = {"type": "tool", "name": name}
    request = parse(tools=[*TOOLS, named], tool_choice=choice)
    function = request.tools[-1]["function"]
    assert (function["name"], function["parameters"]["properties"].keys()) == (name, fields)
    assert jsonschema_rs.meta.is_valid(function["parameters"])
    assert request.allowed_tools == (name,)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": "m" * 300}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 33}, "stop_sequences"),
        ({"stop_sequences": ["x" * 1001]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tools": [{"name": "f", "input_schema": {}}] * 513}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools.0.type"),
        ({"tools": [{"type": ["bash_20250124"], "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "sh"}]}, "tools.0.name"),
        ({"tools": [{"type": "bash_20250124"}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "f", "description": 1, "input_schema": {}}]}, "tools.0.description"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": TOOLS}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": ["f"]}, "tools": TOOLS}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice.name"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"metadata": {"user_id": 1}}, "metadata.user_id"),
        ({"metadata": {"user_id": "u" * 513}}, "metadata.user_id"),
        ({"messages": []}, "messages"),
        ({"messages": [ASK] * 7}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"thread": {"type": "create"}}, "thread"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_the_tool_runner_is_told_to_send_the_whole_conversation(thread: dict[str, Any]) -> None:
    status, _, body = AnthropicMessages().error(refused(thread=thread))
    assert status == 400
    assert json.loads(body)["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model":1}', b"\xff", b"[" * 5000])
def test_any_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        AnthropicMessages().parse(body, {}, ServerSettings())


WHOLE: dict[str, Any] = {
    **SMALLEST,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [], "is_error": 1}],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": CLAUDE_CODE},
    "stop_sequences": ["x"],
    "stream": True,
    "temperature": 1,
    "top_k": 1,
    "top_p": 1,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "name", "role"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places(value: object, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside."""
    inner = value.items() if isinstance(value, dict) else []
    inner = enumerate(value) if isinstance(value, list) else inner
    return [found for key, item in inner for found in [(*at, key), *places(item, (*at, key))]]


@given(st.sampled_from(places(WHOLE)), ANYTHING)
def test_any_field_may_be_anything(place: tuple[Any, ...], value: Any) -> None:
    body = json.loads(json.dumps(WHOLE))
    holder = body
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    for parse in (AnthropicMessages().parse, AnthropicMessages().parse_count):
        try:
            request = parse(json.dumps(body).encode(), {}, ServerSettings())
        except InvalidRequest:
            continue
        assert all(isinstance(message["role"], str) for message in request.messages)
