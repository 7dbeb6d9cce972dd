from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.errors import InvalidRequest, NotFound
from gateway.records import Reply, ToolCall
from gateway.wire.responses_ids import Prefix, input_id, output_id, turn_of_item, turn_of_response
from gateway.wire.responses_input import last_turn, messages_of, references
from gateway.wire.responses_output import output_items

ONE = UUID("0199aaaa-0000-7000-8000-000000000001")
TWO = UUID("0199aaaa-0000-7000-8000-000000000002")


def call(id_: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}", **fields}


def output(id_: str = "c1", text: str = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": text}


def said(text: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": parts, **fields}


def chat_call(id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def result(id_: str = "c1", text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def reply(content: Any = None, calls: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": [chat_call(id_) for id_ in calls]} if calls else message


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **fields}


U = {"role": "user", "content": "u"}

CASES: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("a string", "u", [U]),
    ("no type", [U], [U]),
    (
        "one part is a string",
        [{"role": "developer", "content": [{"type": "input_text", "text": "d"}]}],
        [{"role": "developer", "content": "d"}],
    ),
    (
        "parts stay apart",
        [{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
        [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
    ),
    ("no parts", [{"role": "user", "content": []}], [{"role": "user", "content": ""}]),
    (
        "a refusal",
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [reply([{"type": "refusal", "refusal": "no"}])],
    ),
    (
        "a reply in items",
        [U, thought("t"), said("s"), call("c1"), call("c2"), output("c1"), output("c2")],
        [U, reply("s", ["c1", "c2"], reasoning_content="t"), result("c1"), result("c2")],
    ),
    ("calls alone", [U, call(), output()], [U, reply(None, ["c1"]), result()]),
    (
        "calls after results begin a reply",
        [call("c1"), output("c1"), call("c2"), output("c2"), said("s")],
        [reply(None, ["c1"]), result("c1"), reply(None, ["c2"]), result("c2"), reply("s")],
    ),
    (
        "results between the calls of one turn",
        [
            call("c1", id=output_id(Prefix.CALL, ONE, 0)),
            output("c1"),
            call("c2", id=output_id(Prefix.CALL, ONE, 1)),
            output("c2"),
        ],
        [reply(None, ["c1", "c2"]), result("c1"), result("c2")],
    ),
    (
        "ids of two turns",
        [said("a", id=output_id(Prefix.MESSAGE, ONE, 0)), call(id=output_id(Prefix.CALL, TWO, 0))],
        [reply("a"), reply(None, ["c1"])],
    ),
    (
        "text on both sides of a call",
        [said("a"), call(), said("b"), output()],
        [reply("ab", ["c1"]), result()],
    ),
    ("two messages are two replies", [said("a"), said("b")], [reply("a"), reply("b")]),
    (
        "reasoning begins a reply",
        [said("a"), thought("t"), said("b")],
        [reply("a"), reply("b", reasoning_content="t")],
    ),
    (
        "reasoning in the open comes before its summary",
        [thought("short", content=[{"type": "reasoning_text", "text": "long"}]), said("b")],
        [reply("b", reasoning_content="long")],
    ),
    (
        "reasoning that only the original can read",
        [{"type": "reasoning", "summary": [], "encrypted_content": "x", "content": None}, call()],
        [reply(None, ["c1"])],
    ),
    (
        "reasoning as a message",
        [{"role": "assistant", "content": "<think>\nt\n</think>"}, call()],
        [reply(None, ["c1"], reasoning_content="t")],
    ),
    (
        "a user in between",
        [said("a"), U, call(), output()],
        [reply("a"), U, reply(None, ["c1"]), result()],
    ),
    (
        "a result in parts",
        [
            call(),
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "r"}],
            },
        ],
        [reply(None, ["c1"]), result()],
    ),
]


@pytest.mark.parametrize(("items", "messages"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_items_become_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    assert messages_of(items, 100) == messages


REPLIES = [
    Reply(text="s"),
    Reply(),
    Reply(text="s", reasoning="t"),
    Reply(tool_calls=(ToolCall(id="c1", name="f", arguments="{}"),)),
    Reply(
        text="s",
        reasoning="t",
        tool_calls=(
            ToolCall(id="c1", name="f", arguments='{"a": 1}'),
            ToolCall(id="c2", name="g", arguments=""),
        ),
    ),
]


@pytest.mark.parametrize("summary", [True, False])
@pytest.mark.parametrize("whole", REPLIES)
def test_our_items_sent_back_are_our_reply(whole: Reply, summary: bool) -> None:
    items = output_items(ONE, whole, summary=summary)
    assert {turn_of_item(item["id"]) for item in items} == {ONE}
    assert messages_of(items, 100) == [whole.message()]


BAD: list[tuple[Any, str]] = [
    ([{"role": "tool", "content": "x"}], "input[0].role"),
    ([{"type": "message", "content": "x"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": 3}], "input[0].content"),
    ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
    ([{"role": "user", "content": [{"type": "x"}]}], "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": []}]}], "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        "input[0].content[0].type",
    ),
    ([{}], "input[0].type"),
    ([{"type": "web_search_call"}], "input[0].type"),
    ([{"type": ["x"]}], "input[0].type"),
    ([call(), {"type": "function_call_output", "call_id": "c1"}], "input[1].output"),
    ([call(arguments={})], "input[0].arguments"),
    ([call(name=None)], "input[0].name"),
    ([{"type": "reasoning", "summary": "x"}], "input[0].summary"),
    ([{"type": "reasoning", "summary": ["x"]}], "input[0].summary[0]"),
    ([U] * 101, "input"),
]


@pytest.mark.parametrize(("items", "param"), BAD)
def test_a_bad_item_is_named(items: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of(items, 100)
    assert caught.value.param == param


def test_references_name_their_turns() -> None:
    id_ = output_id(Prefix.CALL, ONE, 1)
    assert references([U, {"type": "item_reference", "id": id_}]) == {id_: ONE}
    assert references("u") == references([U]) == references(None) == {}
    for other in ("msg_1", input_id(Prefix.MESSAGE, ONE, 0)):
        with pytest.raises(NotFound, match=other):
            references([{"type": "item_reference", "id": other}])
    with pytest.raises(InvalidRequest):
        references([{"type": "item_reference"}])


LAST: list[tuple[str, Any, UUID | None]] = [
    ("a string", "u", None),
    ("no reply", [U], None),
    ("no id", [U, said("a"), U], None),
    ("an id of another server", [said("a", id="msg_1"), U], None),
    ("a message", [said("a", id=output_id(Prefix.MESSAGE, ONE, 0)), U], ONE),
    (
        "the last of two",
        [
            said("a", id=output_id(Prefix.MESSAGE, ONE, 0)),
            U,
            call(id=output_id(Prefix.CALL, TWO, 0)),
            output(),
        ],
        TWO,
    ),
    (
        "a call without its id",
        [said("a", id=output_id(Prefix.MESSAGE, ONE, 0)), call(), output(), U],
        ONE,
    ),
    ("the last has none", [said("a", id=output_id(Prefix.MESSAGE, ONE, 0)), U, said("b"), U], None),
    ("a reference", [{"type": "item_reference", "id": output_id(Prefix.CALL, ONE, 0)}], ONE),
]


@pytest.mark.parametrize(("items", "turn"), [c[1:] for c in LAST], ids=[c[0] for c in LAST])
def test_items_name_the_turn_that_they_continue(items: Any, turn: UUID | None) -> None:
    assert last_turn(items) == turn


def test_only_ids_of_replies_name_their_turn() -> None:
    assert turn_of_item(output_id(Prefix.REASONING, ONE, 3)) == ONE
    for other in (input_id(Prefix.MESSAGE, ONE, 3), "msg_1", "", None, 7, f"x_{ONE.hex}0000"):
        assert turn_of_item(other) is None
    assert turn_of_response(f"resp_{ONE.hex}") == ONE
    assert turn_of_response(f"resp_{ONE.hex}0") is None
    assert turn_of_response(f"{ONE.hex}") is None
