"""What an engine is told to enforce."""

from __future__ import annotations

import json
from typing import Any

from gateway.tokens.formats import HERMES
from gateway.tokens.grammar import enforced
from gateway.tokens.reply_format import ReplyFormat, split

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": 'say "hi"'}},
)
PLAIN, TOOLED = ReplyFormat(), ReplyFormat(calls=HERMES)


def body(grammar: Any) -> dict[str, Any]:
    """The format inside the structural tag."""
    assert list(grammar) == ["structural_tag"]
    tag = grammar["structural_tag"]
    assert tag["type"] == "structural_tag"
    found: dict[str, Any] = tag["format"]
    return found


def test_calls_are_forced_in_the_form_that_is_read_again() -> None:
    grammar, form = enforced(None, TOOLS, PLAIN, required=True)
    assert form == TOOLED
    calls = body(grammar)
    assert (calls["at_least_one"], calls["stop_after_first"]) == (True, False)
    arguments = {"weather": '{"city": "Oslo"}', 'say "hi"': "{}"}
    text = calls["separator"].join(
        tag["begin"] + arguments[name] + tag["end"]
        for tag, name in zip(calls["tags"], arguments, strict=True)
    )
    assert split(text, form).calls == tuple(arguments.items())
    assert split(text, form).text == ""
    assert [tag["content"]["json_schema"] for tag in calls["tags"]] == [
        SCHEMA,
        {"type": "object", "properties": {}},
    ]


def test_one_tool_by_name_and_one_call_at_most() -> None:
    grammar, _ = enforced(None, TOOLS, TOOLED, required=True, allowed=("weather",), parallel=False)
    calls = body(grammar)
    assert calls["stop_after_first"] is True
    assert ['"weather"' in tag["begin"] for tag in calls["tags"]] == [True]


def test_a_schema_alone_is_left_as_it_is() -> None:
    grammar = {"json_schema": json.dumps(SCHEMA)}
    assert enforced(grammar, (), PLAIN, required=False) == (grammar, PLAIN)
    assert enforced(grammar, TOOLS, PLAIN, required=False) == (grammar, PLAIN)
    assert enforced(None, TOOLS, TOOLED, required=False) == (None, TOOLED)


def test_a_reply_is_json_or_a_call_where_both_are_allowed() -> None:
    grammar, _ = enforced({"json_schema": json.dumps(SCHEMA)}, TOOLS, TOOLED, required=False)
    either = body(grammar)
    assert either["type"] == "or"
    json_part, calls = either["elements"]
    assert json_part == {"type": "json_schema", "json_schema": SCHEMA}
    assert len(calls["tags"]) == 2


def test_reasoning_comes_before_what_is_enforced() -> None:
    given = {"json_schema": json.dumps(SCHEMA)}
    opened, _ = enforced(given, (), ReplyFormat(think=True, prefilled=True), required=False)
    parts = body(opened)["elements"]
    assert [parts[0]["begin"], parts[0]["end"]] == ["", "</think>"]
    assert parts[-1] == {"type": "json_schema", "json_schema": SCHEMA}
    free, _ = enforced(given, (), ReplyFormat(think=True), required=False)
    reasoned, bare = body(free)["elements"]
    assert reasoned["elements"][0]["begin"] == "<think>"
    assert bare == parts[-1]
