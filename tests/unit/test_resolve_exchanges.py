"""Turns are found by what clients leave of them."""

from __future__ import annotations

import json

import pytest

from gateway.records import Message
from gateway.resolve import EchoKind, echoed, echoes_of

START = b"one key and model"
REPLY = "The **harbour** opens at six [1], see [the list](https://example.test/a?b=c).\n"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


def found(kept: str, said: str, told: list[Message]) -> set[str]:
    """Which marks of the keys of a turn a later request shows."""
    stored = set(echoes_of([user(kept)], reply(said), START))
    wanted = {
        echo.key
        for echo in echoed(told, START)
        if echo.kind in (EchoKind.OUTLINE, EchoKind.REPLY, EchoKind.QUOTE)
    }
    return {key[0] for key in stored & wanted}


@pytest.mark.parametrize(
    "kept",
    [
        "The harbour opens at six, see the list.",
        "The harbour opens at six [1], see the list",
        "the harbour".join(REPLY.split("The **harbour**")).replace("the harbour", "The harbour"),
    ],
)
def test_formatting_and_marks_of_sources_do_not_count(kept: str) -> None:
    assert "=" in found("When?", REPLY, [user("When?"), reply(kept), user("Thanks")])


@pytest.mark.parametrize(
    "kept", ["The harbour opens at five, see the list.", "The harbour opens at six [1]"]
)
def test_other_words_do(kept: str) -> None:
    assert "=" not in found("When?", REPLY, [user("When?"), reply(kept), user("Thanks")])


@pytest.mark.parametrize(
    "asked",
    [
        "When does it open?\n<reminder>2 files are open</reminder>",
        "<documents>\nOne.\n\nTwo.\n</documents>\n\nWhen does it open?",
        "Context:\nOne. Two.\n\nQuestion: When does it open?",
    ],
)
def test_what_stood_before_or_behind_a_question_may_be_gone_later(asked: str) -> None:
    then = [user("When does it open?"), reply("At six in the morning."), user("Thanks")]
    assert found(asked, "At six in the morning.", then) == {"="}


def test_what_stood_before_a_question_may_be_other_words_later() -> None:
    asked, later = (f"Now: 10:0{minute}\n\nWhen does it open?" for minute in (0, 1))
    then = [user(later), reply("At six in the morning."), user("Thanks")]
    assert found(asked, "At six in the morning.", then) == {"="}


def test_a_short_exchange_is_no_key_without_all_its_words() -> None:
    then = [user("Go on"), reply("Done."), user("Thanks")]
    assert found("Go on\n<reminder>2 files are open</reminder>", "Done.", then) == set()
    assert "=" in found("Go on", "Done.", then)


def test_the_beginning_of_a_reply_is_enough_where_it_was_cut() -> None:
    whole = "The harbour opens at six and closes at nine in the evening."
    spoken = "The harbour opens at six and closes"
    assert found("When?", whole, [user("When?"), reply(spoken), user("Stop")]) == {"-"}
    assert found("When?", whole, [user("When?"), reply("The harbour"), user("Stop")]) == set()
    assert found("When?", whole, [user("Why?"), reply(spoken), user("Stop")]) == set()


def test_a_long_reply_is_known_by_itself() -> None:
    long = (
        "The harbour opens at six in the morning on days when the tide is high and no wind blows."
    )
    assert found("When?", long, [user("Other words"), reply(long), user("Thanks")]) == {"."}
    assert found("When?", "Done.", [user("Other words"), reply("Done."), user("Thanks")]) == set()


def test_words_put_into_the_assistants_mouth_do_not_hide_its_last_reply() -> None:
    told = [
        user("A map"), reply("Ok."), user("When?"), reply("At six."),
        user("These files were added"), reply("Ok, I see them."), user("And on Sunday?"),
    ]  # fmt: skip
    assert found("When?", "At six.", told) == {"="}


def test_messages_written_as_json_are_quoted() -> None:
    told = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At six."}]
    asked = f"Sum these up: {json.dumps(told, indent=1)} Be short."
    assert found("When?", "At six.", [user(asked)]) == {"="}
    parts = [{"role": "user", "content": [{"type": "text", "text": "When?"}]}, told[1]]
    assert found("When?", "At six.", [user(json.dumps(parts))]) == {"="}


@pytest.mark.parametrize(
    "asked",
    [
        '[{"role": "user", "content": "When?"',
        '[{"role": 1, "content": {}}, {"a": []}]',
        '[{"role": "assistant", "content": "At six."}]',
        '[{"role":' + "[" * 5000,
        "[{" * 9000,
    ],
)
def test_what_only_looks_like_json_is_none(asked: str) -> None:
    assert found("When?", "At six.", [user(asked)]) == set()
