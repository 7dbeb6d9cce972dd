from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.anthropic_blocks import arguments_of, converted, input_of

ASK = {"role": "user", "content": "hi"}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(id_: str, name: str = "f", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def result(id_: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def call(id_: str, arguments: str, name: str = "f") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_strings_and_single_texts_are_the_same() -> None:
    cached = text("hi", cache_control={"type": "ephemeral"})
    assert converted(None, [{"role": "user", "content": [cached]}], 9) == (ASK,)
    assert converted("", [ASK], 9) == (ASK,)
    system = {"role": "system", "content": "One.\n\nTwo."}
    assert converted([text("One."), text("Two.", cache_control={})], [ASK], 9) == (system, ASK)


def test_several_texts_stay_apart() -> None:
    blocks = [text("a", cache_control={"type": "ephemeral"}), text("b")]
    [message] = converted(None, [{"role": "user", "content": blocks}], 9)
    assert message == {"role": "user", "content": [text("a"), text("b")]}


def test_a_system_message_may_stand_anywhere() -> None:
    later = {"role": "system", "content": [text("Now."), text("Later.")]}
    assert converted("First.", [ASK, later], 9) == (
        {"role": "system", "content": "First."},
        ASK,
        {"role": "system", "content": "Now.\n\nLater."},
    )


def test_a_reply_of_every_block() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "xxxx"},
        text("Let me "),
        use("toolu_1", city="Zürich", days=2),
        text("look."),
        use("toolu_2", "g"),
    ]
    said = converted(None, [ASK, {"role": "assistant", "content": blocks}, ASK], 9)[1]
    assert said == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [call("toolu_1", '{"city":"Zürich","days":2}'), call("toolu_2", "{}", "g")],
    }


def test_a_reply_of_calls_alone_has_no_text() -> None:
    said = converted(None, [ASK, {"role": "assistant", "content": [use("a")]}, ASK], 9)[1]
    assert said == {"role": "assistant", "content": None, "tool_calls": [call("a", "{}")]}
    empty = converted(None, [ASK, {"role": "assistant", "content": []}, ASK], 9)[1]
    assert empty == {"role": "assistant", "content": ""}


def test_results_come_in_the_order_of_their_calls_and_before_words() -> None:
    reply = {"role": "assistant", "content": [use("a"), use("b"), use("c")]}
    blocks = [
        text("and now?"),
        result("c", [text("three")]),
        result("stray", None),
        result("b", [text("tw"), text("o")], is_error=True),
        result("a", "one", is_error=False, cache_control={"type": "ephemeral"}),
    ]
    messages = converted(None, [ASK, reply, {"role": "user", "content": blocks}], 9)
    assert messages[2:] == (
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {
            "role": "tool",
            "tool_call_id": "b",
            "content": [text("tw"), text("o")],
            "is_error": True,
        },
        {"role": "tool", "tool_call_id": "c", "content": "three"},
        {"role": "tool", "tool_call_id": "stray", "content": ""},
        {"role": "user", "content": "and now?"},
    )


@pytest.mark.parametrize(
    ("arguments", "given", "again"),
    [
        ('{"a": 1}', {"a": 1}, '{"a":1}'),
        ("", {}, "{}"),
        ("  ", {}, "{}"),
        ('{"a": ', {"a": None, "INVALID_JSON": '{"a": '}, '{"a": '),
        ("[1]", {"INVALID_JSON": "[1]"}, "[1]"),
        ("{'a': 1}", {"INVALID_JSON": "{'a': 1}"}, "{'a': 1}"),
    ],
)
def test_arguments_survive_the_round_trip(
    arguments: str, given: dict[str, Any], again: str
) -> None:
    assert input_of(arguments) == given
    assert arguments_of(given) == again


def test_an_input_that_only_looks_unparsed_is_kept() -> None:
    assert arguments_of({"INVALID_JSON": 1}) == '{"INVALID_JSON":1}'
    assert arguments_of({"INVALID_JSON": ["x"]}) == '{"INVALID_JSON":["x"]}'


NESTED: Any = "deep"
for _ in range(120):
    NESTED = {"a": NESTED}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"content": "hi"}, "messages.0.role"),
    ({"role": "tool", "content": "hi"}, "messages.0.role"),
    ({"role": "user"}, "messages.0.content"),
    ({"role": "user", "content": 1}, "messages.0.content"),
    ({"role": "user", "content": ["hi"]}, "messages.0.content.0"),
    ({"role": "user", "content": [{"text": "x"}]}, "messages.0.content.0.type"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
    ({"role": "user", "content": [text("a"), {"type": "image", "source": {}}]},
     "messages.0.content.1.type"),
    ({"role": "user", "content": [{"type": "document"}]}, "messages.0.content.0.type"),
    ({"role": "user", "content": [use("a")]}, "messages.0.content.0.type"),
    ({"role": "user", "content": [result("a", 1)]}, "messages.0.content.0.content"),
    ({"role": "user", "content": [result("a", [{"type": "image"}])]},
     "messages.0.content.0.content.0.type"),
    ({"role": "user", "content": [{"type": "tool_result"}]}, "messages.0.content.0.tool_use_id"),
    ({"role": "assistant", "content": [result("a")]}, "messages.0.content.0.type"),
    ({"role": "assistant", "content": [{"type": "server_tool_use"}]}, "messages.0.content.0.type"),
    ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]},
     "messages.0.content.0.input"),
    ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]},
     "messages.0.content.0.id"),
    ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]},
     "messages.0.content.0.name"),
    ({"role": "assistant", "content": [{"type": "thinking"}]}, "messages.0.content.0.thinking"),
    ({"role": "system", "content": [use("a")]}, "messages.0.content.0.type"),
    ({"role": "user", "content": "hi", "x": NESTED}, "messages.0"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "param"), WRONG)
def test_a_wrong_block_is_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        converted(None, [message, ASK], 9)
    assert caught.value.param == param


def test_a_reply_is_not_continued() -> None:
    with pytest.raises(InvalidRequest) as caught:
        converted(None, [ASK, {"role": "assistant", "content": "{"}], 9)
    assert caught.value.param == "messages"


def test_tool_results_count_as_messages() -> None:
    many = {"role": "user", "content": [result(str(number)) for number in range(5)]}
    reply = {"role": "assistant", "content": [use(str(number)) for number in range(5)]}
    assert len(converted(None, [ASK, reply, many], 7)) == 7
    with pytest.raises(InvalidRequest):
        converted(None, [ASK, reply, many], 6)
