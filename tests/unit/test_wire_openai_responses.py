from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest, NextstateError, NotFound, RequestError
from gateway.records import Reply, Sampling, TurnKind, TurnRequest
from gateway.resolve import chain, prefixes, seed
from gateway.wire.openai_responses import OpenAIResponses, continued, referred, with_items
from gateway.wire.responses_ids import Prefix, output_id
from gateway.wire.responses_input import messages_of
from gateway.wire.responses_output import output_items
from tests.examples import examples

RESPONSES = OpenAIResponses()
LIMITS = ServerSettings(max_messages=50)
RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/responses_clients.jsonl")
    .read_bytes()
    .split(b"\n")
    if line
]
TURN = UUID("0199aaaa-0000-7000-8000-000000000001")
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"a": 1}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"a": 1}},
}


def parse(headers: Mapping[str, str] | None = None, /, **fields: Any) -> TurnRequest:
    body = {"model": "m", "input": "Hi", **fields}
    return RESPONSES.parse(json.dumps(body).encode(), headers or {}, LIMITS)


def test_a_small_request_leaves_open_what_it_does_not_say() -> None:
    found = parse()
    assert (found.dialect, found.model, found.messages) == ("openai_responses", "m", (USER,))
    assert found.sampling == Sampling()
    assert (found.stream, found.store, found.previous_turn, found.tools) == (False, True, None, ())
    assert (found.tool_choice, found.choices, found.top_logprobs) == ("auto", 1, None)


def test_a_full_request_is_read_in_full() -> None:
    found = parse(
        {"x-turn-type": "side", "x-session-id": "s", "x-stainless-retry-count": "2"},
        instructions="Be brief.",
        input=[USER],
        previous_response_id=f"resp_{TURN.hex}",
        stream=True,
        store=False,
        temperature=0,
        top_p=0.5,
        max_output_tokens=7,
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        tools=[{**TOOL, "strict": True}],
        tool_choice="none",
        parallel_tool_calls=True,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"a": 1}, "strict": True}},
        reasoning={"effort": "low"},
        truncation="auto",
        metadata={"a": "b"},
        safety_identifier="u",
        prompt_cache_key="k",
        service_tier="auto",
        never_heard_of={"x": [1]},
    )
    assert [dict(m, instructions=None) for m in found.messages] == [
        {"role": "system", "content": "Be brief.", "instructions": None},
        {**USER, "instructions": None},
    ]
    assert found.sampling == Sampling(
        temperature=0, top_p=0.5, max_tokens=7, grammar={"json_schema": '{"a":1}'}
    )
    assert found.tools == (CHAT_TOOL,)
    assert (found.stream, found.store, found.previous_turn) == (True, False, TURN)
    assert (found.tool_choice, found.top_logprobs, found.user) == ("none", 0, "u")
    assert (found.session_name, found.declared_kind) == ("s", TurnKind.SIDE)
    assert (found.retry_count, found.template_kwargs) == (2, {"reasoning_effort": "low"})


SESSIONS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"prompt_cache_key": "my-app-v3"}, None),
    ({"prompt_cache_key": "01a227ab-605f-7863-974a-212717b7ed10"},
     "01a227ab-605f-7863-974a-212717b7ed10"),
    ({"prompt_cache_key": "ses_6f1cAbCdEfGh"}, "ses_6f1cAbCdEfGh"),
    ({"client_metadata": {"session_id": "a", "thread_id": "a"}}, "a"),
    ({"client_metadata": {"session_id": "a", "thread_id": "b"}}, "a/b"),
    ({"client_metadata": {"session_id": 3}}, None),
    ({"client_metadata": {"session_id": "a\n"}}, None),
    ({"client_metadata": {"session_id": "a" * 201}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name"), SESSIONS)
def test_the_session_that_a_body_names(fields: dict[str, Any], name: str | None) -> None:
    assert parse(**fields).session_name == name
    assert parse({"x-session-id": "mine"}, **fields).session_name == "mine"


def test_tools_that_cannot_be_run_here_are_left_out() -> None:
    inner = {"type": "function", "name": "g"}
    tools = [
        {"type": "web_search", "external_web_access": True},
        {"type": "web_search_2025_08_26"},
        {"type": "namespace", "name": "n", "tools": [inner, {**TOOL}, {"type": "custom"}]},
        TOOL,
    ]
    found = parse(tools=tools)
    assert found.tools == (CHAT_TOOL, {"type": "function", "function": {"name": "g"}})
    assert found.echo["namespaces"] == {"g": "n"}
    assert found.echo["response"]["tools"] == tools


DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]

BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [3]}, "input[0]"),
    ({"model": ""}, "model"),
    ({"model": 3}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "middle"}, "truncation"),
    ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
    ({"tools": [{"type": ["function"]}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 3}]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [3]}]}, "tools[0].tools"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}, "tools": [TOOL]}, "tool_choice.type"),
    (
        {
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [3]},
            "tools": [TOOL],
        },
        "tool_choice.allowed_tools.tools[0].function.name",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"tools": [{"type": "web_search", "x": DEEP}]}, "tools"),
    ({"text": {"format": {"type": "text", "x": DEEP}}}, "text"),
    ({"input": [{**USER, "x": DEEP}]}, "input[0]"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_an_error_in_the_words_of_the_api() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(previous_response_id="resp_123")
    status, _, body = RESPONSES.error(caught.value)
    assert status == 400
    assert json.loads(body) == {
        "error": {
            "message": "Previous response with id 'resp_123' not found.",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        }
    }
    # What the template says of messages is said of the input.
    for param, shown in (("messages", "input"), ("response_format", "text.format"), (None, None)):
        _, _, body = RESPONSES.error(InvalidRequest("no", param=param))
        assert json.loads(body)["error"]["param"] == shown


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("required", ("required", ())),
        ({"type": "function", "name": "f"}, ("required", ("f",))),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            ("required", ("f",)),
        ),
    ],
)
def test_calls_can_be_required(choice: Any, found: tuple[str, tuple[str, ...]]) -> None:
    asked = parse(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert (asked.tool_choice, asked.allowed_tools) == found
    assert asked.parallel_tool_calls is False
    assert asked.echo["response"]["tool_choice"] == choice


def test_the_likeliest_tokens_are_shown_beside_logprobs() -> None:
    included = ["message.output_text.logprobs"]
    assert parse(top_logprobs=3, include=included).top_logprobs == 3
    assert parse(top_logprobs=3).top_logprobs is None


def test_items_that_are_referred_to_are_put_in() -> None:
    id_ = output_id(Prefix.MESSAGE, TURN, 0)
    reference = {"type": "item_reference", "id": id_}
    asked = parse(instructions="i", input=[USER, reference, USER])
    assert referred(asked) == {id_: TURN}
    item = output_items(TURN, Reply(text="Hello"))[0]
    whole = with_items(asked, {id_: item}, 50)
    assert [m["content"] for m in whole.messages] == ["i", "Hi", "Hello", "Hi"]
    with pytest.raises(NotFound, match=id_):
        with_items(asked, {}, 50)
    assert referred(parse()) == {}


def test_instructions_are_not_handed_on() -> None:
    system = {"role": "system", "content": "kept"}
    first = parse(instructions="old", input=[system, USER]).messages
    reply = {"role": "assistant", "content": "Hello"}
    asked = parse(instructions="new").messages
    assert [m["content"] for m in continued([*first, reply], asked)] == [
        "new", "kept", "Hi", "Hello", "Hi",
    ]  # fmt: skip
    without = continued([*first, reply], parse().messages)
    assert [m["content"] for m in without] == ["kept", "Hi", "Hello", "Hi"]


@pytest.mark.parametrize("recorded", RECORDED, ids=[each["client"] for each in RECORDED])
def test_real_clients_are_understood_and_recognised(recorded: dict[str, Any]) -> None:
    """Each request that sends a reply back, in whatever form, is found to continue it."""
    known: set[bytes] = set()
    for number, call in enumerate(recorded["calls"]):
        body = dict(call["body"])
        if "conversation" in body:
            with pytest.raises(InvalidRequest, match="previous_response_id"):
                RESPONSES.parse(json.dumps(body).encode(), call["headers"], LIMITS)
            return
        if body.get("previous_response_id"):
            # The recorder's own id; ours name a turn.
            body["previous_response_id"] = f"resp_{TURN.hex}"
        found = RESPONSES.parse(json.dumps(body).encode(), call["headers"], LIMITS)
        start = seed(TURN, found.model)
        resent = any(message["role"] == "assistant" for message in found.messages)
        # A resumed session begins with replies that were recorded elsewhere.
        if resent and not (recorded["client"] == "codex-resume" and number == 0):
            assert any(prefix.hash in known for prefix in prefixes(found.messages, start))
        if call["output"]:
            [reply] = messages_of(call["output"], 50)
            known.add(chain([*found.messages, reply], start)[-1])


def test_codex_names_its_session() -> None:
    [recorded] = [each for each in RECORDED if each["client"] == "codex-two-tools"]
    for call in recorded["calls"]:
        body = json.dumps(call["body"]).encode()
        name = call["headers"]["session-id"]
        assert RESPONSES.parse(body, call["headers"], LIMITS).session_name == name
        assert RESPONSES.parse(body, {}, LIMITS).session_name == name


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "function_call_output", "item_reference"]
        )
        | _JSON,
        "role": st.sampled_from(["user", "assistant", "system"]) | _JSON,
        "content": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "output_text", "refusal"]) | _JSON},
                optional={"text": _JSON, "refusal": _JSON},
            ),
            max_size=3,
        )
        | _JSON,
        **dict.fromkeys(("id", "call_id", "name", "arguments", "output", "summary"), _JSON),
    },
)
_FIELDS = (
    "instructions", "previous_response_id", "stream", "store", "temperature", "top_p",
    "max_output_tokens", "include", "tools", "tool_choice", "text", "reasoning", "metadata",
    "prompt_cache_key", "client_metadata", "truncation", "top_logprobs", "chat_template_kwargs",
)  # fmt: skip


@examples(120)
@given(
    st.fixed_dictionaries(
        {"model": st.just("m"), "input": st.lists(_ITEM, max_size=4) | _JSON},
        optional=dict.fromkeys(_FIELDS, _JSON),
    )
)
def test_any_body_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        found = RESPONSES.parse(json.dumps(body).encode(), {}, LIMITS)
    except RequestError as error:
        found = None
        status, _, _ = RESPONSES.error(error)
    if found is None:
        assert status in (400, 404)
    else:
        assert len(chain(found.messages, seed(TURN, found.model))) == len(found.messages)


def test_other_failures_keep_their_status() -> None:
    assert RESPONSES.error(NotFound("no"))[0] == 404
    assert RESPONSES.error(NextstateError("secret"))[0] == 500
