"""What redaction finds, and what is left of a turn in which it found something."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.config import RedactionSettings
from gateway.errors import ConfigError
from gateway.records import SAME_TOOLS, Sampling, TurnRequest
from gateway.redaction import Redactor, detectors
from gateway.redaction.patterns import luhn, mod_97
from gateway.resolve import chain, chained, head_hash
from tests.factories import next_state, session, turn

KEY = "a-key-of-sixteen"


def made(**values: Any) -> Redactor:
    redactor = Redactor.configured(RedactionSettings(hash_key=KEY, **values))
    assert redactor is not None
    return redactor


REDACTOR = made()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail ann.b+c@example.co.uk, please", "mail [redacted:email], please"),
        ("call +44 20 7946 0958 now", "call [redacted:phone] now"),
        ("call (555) 123-4567.", "call [redacted:phone]."),
        # The numbers that card networks publish for tests.
        ("4111 1111 1111 1111", "[redacted:card]"),
        ("378282246310005!", "[redacted:card]!"),
        ("to DE89 3704 0044 0532 0130 00", "to [redacted:iban]"),
        ("key sk-ns-abcdefghijklmnop0123", "key [redacted:key]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted:key]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nend",
            "[redacted:key]\nend",
        ),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "[redacted:key]"),
        ("a@b.org and c@d.org", "[redacted:email] and [redacted:email]"),
    ],
)
def test_what_is_found(text: str, expected: str) -> None:
    assert REDACTOR.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # the check digit is wrong
        "DE88 3704 0044 0532 0130 00",
        "user@localhost",
        "version 10.11.12.13 of 2026-11-30 12:30:45",
        "call_0123456789abcdef01234567",
        "1 + 1 = 2, 3.14159265358979",
        "task-force sk-short",
    ],
)
def test_what_is_let_through(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_check_digits() -> None:
    # The usual worked example, 7992739871 and its check digit 3: right, and too short for a card.
    assert not luhn("79927398713")
    assert luhn("0079927398713")
    assert [last for last in range(10) if luhn(f"411111111111111{last}")] == [1]
    assert mod_97("GB82 WEST 1234 5698 7654 32")
    assert not mod_97("GB82 WEST 1234 5698 7654 33")


def test_long_texts_of_one_sign_take_no_time_to_speak_of() -> None:
    """Backtracking would take hours for any of them."""
    for text in ("a" * 200_000, "1" * 200_000, "1-" * 100_000, "a." * 100_000, "@a" * 100_000):
        REDACTOR.text(text)


def test_what_json_inside_a_text_escapes_hides_nothing() -> None:
    card = "4111 1111 1111 1111"
    for text, expected in (
        (f'{{"pay": "by\\n{card}"}}', '{"pay": "by\\n[redacted:card]"}'),
        (f"by\\u2028{card}\\\\n", "by\\u2028[redacted:card]\\\\n"),
        (r"at\ta\u0040b.org\u002c", r"at\t[redacted:email]\u002c"),
        (r"half a pair \ud83d a@b.org", r"half a pair \ud83d [redacted:email]"),
    ):
        assert REDACTOR.text(text) == expected
    named = made(expressions={"name": "Müller"})
    assert named.text(json.dumps("Herr Müller sagt")) == '"Herr [redacted:name] sagt"'


def test_own_expressions_and_fewer_patterns() -> None:
    redactor = made(patterns=(), expressions={"badge": r"EMP-\d{6}"})
    assert redactor.text("EMP-123456 a@b.org") == "[redacted:badge] a@b.org"


def test_a_wrong_expression_is_named() -> None:
    with pytest.raises(ValueError, match="badge: missing"):
        RedactionSettings(hash_key=KEY, expressions={"badge": "("})


def test_places_that_overlap_leave_one_gap() -> None:
    redactor = made(patterns=("email",), expressions={"mister": r"Mr \w+@\w+"})
    assert redactor.text("by Mr x@example.org!") == "by [redacted:mister]!"


def request(text: str = "hello", **values: Any) -> TurnRequest:
    messages = ({"role": "user", "content": text},)
    return TurnRequest(dialect="chat", model="m", messages=messages, sampling=Sampling(), **values)


async def test_a_turn_without_a_find_is_the_same_object() -> None:
    one = turn(session())
    assert await REDACTOR.of_turn(request(), one) is one


async def test_a_turn_with_a_find_keeps_no_ids() -> None:
    one = turn(session())
    assert one.trainable
    assert len(one.prompt_ids) * len(one.sampled_ids)
    said = {"role": "user", "content": [{"type": "text", "text": "I am a@b.org"}]}
    found = await REDACTOR.of_turn(request(), replace(one, messages=(said,)))
    assert found.messages == (
        {"role": "user", "content": [{"type": "text", "text": "I am [redacted:email]"}]},
    )
    assert (found.prompt_ids, found.sampled_ids, found.logprobs) == ((), (), ())
    assert (found.shared_len, found.trainable) == (0, False)
    assert (found.untrainable_reason, found.redacted) == ("redacted", True)
    assert found.spans == one.spans


async def test_what_the_prompt_shows_of_before_counts_too() -> None:
    one = turn(session())
    found = await REDACTOR.of_turn(request("I am a@b.org"), one)
    assert found.redacted
    assert found.messages == one.messages
    tools = ({"type": "function", "function": {"name": "f", "description": "ask a@b.org"}},)
    found = await REDACTOR.of_turn(request(tools=tools), replace(one, tools=SAME_TOOLS))
    assert (found.redacted, found.tools) == (True, SAME_TOOLS)


async def test_calls_stay_json_and_sampling_is_looked_at() -> None:
    arguments = json.dumps({"to": "a\n@b.org", "a@b.org": ["x\\a@b.org"], "n": 4111111111111111})
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    one = replace(
        turn(session()),
        reply={"role": "assistant", "content": None, "tool_calls": [call]},
        sampling=Sampling(stop=("a@b.org",), grammar={"json": {"const": "a@b.org"}}),
    )
    found = await REDACTOR.of_turn(request(), one)
    gap = "[redacted:email]"
    assert json.loads(found.reply["tool_calls"][0]["function"]["arguments"]) == {
        "to": "a\n@b.org",
        gap: [f"x\\{gap}"],
        "n": "[redacted:card]",
    }
    assert found.sampling == Sampling(stop=(gap,), grammar={"json": {"const": gap}})


async def test_what_a_response_repeats_is_searched_and_leaves_the_ids() -> None:
    id_ = f"resp_{'0' * 32}"
    fields = {
        "metadata": {"type": "a@b.org", "a@b.org": "x"},
        "user": "a@b.org",
        "instructions": True,
        "previous_response_id": id_,
        "usage": [4111111111111111, 1],
        "top": "4111111111111111 a@b.org",
        "tools": [["f", {"strict": True}], {"type": "mcp", "headers": {"to": "a@b.org"}}],
    }
    one = turn(session(), response_fields=fields)
    found = await REDACTOR.of_turn(request(), one)
    gap = "[redacted:email]"
    assert found.response_fields == {
        "metadata": {"type": gap, gap: "x"},
        "user": gap,
        "instructions": True,
        "previous_response_id": id_,
        "usage": [4111111111111111, 1],
        "top": "4111111111111111 a@b.org",
        "tools": [["f", {"strict": True}], {"type": "mcp", "headers": {"to": gap}}],
    }
    assert replace(found, response_fields=fields) == one
    # Where the prompt shows some of it as well, the ids go as ever.
    found = await REDACTOR.of_turn(request("I am a@b.org"), one)
    assert (found.redacted, found.sampled_ids, found.response_fields["user"]) == (True, (), gap)
    assert "top" not in found.response_fields


async def test_media_are_left_alone() -> None:
    part = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,4111111111111111"},
        "media": {"kind": "image", "sha256": "0" * 64, "bytes": 12, "type": "image/png"},
    }
    one = replace(turn(session()), messages=({"role": "user", "content": [part]},))
    assert await REDACTOR.of_turn(request(), one) is one


async def test_no_argument_of_a_call_is_passed_over() -> None:
    arguments = json.dumps(
        {"role": "a@b.org", "type": {"type": "a@b.org"}, "n": 4111111111111111.0}
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = await REDACTOR.of_turn(request(), replace(turn(session()), reply=said))
    assert json.loads(found.reply["tool_calls"][0]["function"]["arguments"]) == {
        "role": "[redacted:email]",
        "type": {"type": "[redacted:email]"},
        "n": "[redacted:card].0",
    }


async def test_next_states_lose_the_same() -> None:
    state = next_state(turn(session()))
    said = ({"role": "tool", "content": "card 4111111111111111", "tool_call_id": "call_1"},)
    (found,) = await REDACTOR.of_next_states([replace(state, messages=said)])
    assert found.messages == (
        {"role": "tool", "content": "card [redacted:card]", "tool_call_id": "call_1"},
    )


class Names:
    name = "names"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._names = settings["names"]

    def find(self, text: str) -> Iterable[tuple[int, int]]:
        if "fail" in text:
            raise ValueError(text)
        return [(text.index(one), text.index(one) + len(one)) for one in self._names if one in text]


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("names", f"{__name__}:Names", detectors.GROUP)

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([point]).select(**wanted)

    monkeypatch.setattr(detectors, "entry_points", entry_points)


def test_a_detector_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    redactor = made(detectors=("names",), settings={"names": {"names": ["Ann"]}})
    assert redactor.text("Ann, a@b.org") == "[redacted:names], [redacted:email]"
    # What it would have found is not known, and what it says may name it.
    with capture_logs() as logged:
        assert redactor.text("fail for Bob") == "[redacted:unchecked]"
    assert [one["event"] for one in logged] == ["detector_failed"]
    assert "Bob" not in str(logged)
    assert "exc_info" not in logged[0]


def test_a_detector_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(ConfigError, match="no detector named other; there are: names"):
        made(detectors=("other",))
    with pytest.raises(ConfigError, match="detector names: KeyError"):
        made(detectors=("names",))


def test_without_a_key_a_gap_could_be_tried_out_and_with_one_it_cannot() -> None:
    """Who reads the database has the hash before a message, and guesses the message."""
    asked = {"role": "user", "content": "4111 1111 1111 1111"}
    reply = {"role": "assistant", "content": "[redacted:card]"}
    start = bytes(32)
    plain, keyed = (chain([asked, reply], start, key) for key in (b"", REDACTOR.key))
    assert chained(plain[0], reply) == plain[1]
    guess = chain([asked, reply], start)
    assert guess == plain
    assert guess[-1] != keyed[-1]
    assert chained(keyed[0], reply) != keyed[1]
    assert chained(keyed[0], reply, REDACTOR.key) == keyed[1]
    head = [{"role": "system", "content": "4111 1111 1111 1111"}]
    assert head_hash(head, ()) != head_hash(head, (), REDACTOR.key)
