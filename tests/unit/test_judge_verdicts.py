from __future__ import annotations

import pytest

from gateway.records import Message
from judge.verdicts import ToolResult, content_text, edges, tool_results, user_texts


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        (7, ""),
        ([{"type": "text", "text": "a"}, "b", {"type": "image_url", "image_url": {}}], "a\nb"),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "deep"}]}], "deep"),
        ({"text": "one part"}, "one part"),
    ],
)
def test_text_is_read_from_strings_and_parts(content: object, text: str) -> None:
    assert content_text(content) == text


def test_what_agents_insert_is_not_what_the_user_wrote() -> None:
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "<system-reminder>Thanks!</system-reminder>Shorter."},
        {"role": "user", "content": "<environment_context>\nThanks"},
        {"role": "user", "content": "Observation: Thanks"},
        {"role": "user", "content": [
            {"type": "tool_result", "content": "ok", "is_error": True},
            {"type": "text", "text": "And now?"},
        ]},
        {"role": "assistant", "content": "Thanks"},
        {"role": "developer", "content": "Thanks"},
    )  # fmt: skip
    assert list(user_texts(messages)) == ["Shorter.", "And now?"]
    assert list(tool_results(messages)) == [
        ToolResult(text="Observation: Thanks"),
        ToolResult(text="ok", flagged=True),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[Sun 2026-11-29 14:28 UTC] Thanks!", ["Thanks!"]),
        ("[x] Thanks!", ["[x] Thanks!"]),
        ("New task:\nShorter.", ["Shorter."]),
        ("Observation:\nThanks!\nNew task:\nAnd now?", ["And now?"]),
        ("Observation:\nThanks!", []),
        ("  \n", []),
    ],
)
def test_headings_of_agents_are_taken_off(content: str, words: list[str]) -> None:
    assert list(user_texts(({"role": "user", "content": content},))) == words


def test_tool_messages_in_every_shape_are_results() -> None:
    messages: tuple[Message, ...] = (
        {"role": "tool", "content": [{"type": "text", "text": "a"}]},
        {"role": "function", "name": "f", "content": "b"},
        {"role": "tool", "content": {"error": "c"}},
        {"role": "tool", "content": None, "status": "error"},
    )
    assert list(tool_results(messages)) == [
        ToolResult(text="a"),
        ToolResult(text="b"),
        ToolResult(text='{"error": "c"}'),
        ToolResult(text="", flagged=True),
    ]


def test_only_the_edges_of_long_text_are_kept() -> None:
    text = "a" * 5000 + "b" * 5000
    assert edges(text) == "a" * 4096 + "\n" + "b" * 4096
    assert edges("short") == "short"
