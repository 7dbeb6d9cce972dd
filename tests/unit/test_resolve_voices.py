"""What is known of all messages from one look gives what each rule finds that looks for itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pipeline.search import Keys
from gateway.records import (
    REMARK,
    Message,
    Sampling,
    TurnRequest,
    described,
    is_remark,
    media_of,
    plain_text,
    without_data,
)
from gateway.resolve import Voices, chain, head_hash, prefixes, request_hash, seed

KEY_ID = UUID(int=1)
START = seed(KEY_ID, "m")
IMAGE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,AA=="},
    "media": {"kind": "image", "type": "image/png", "bytes": 1, "sha256": "ab"},
}
TOOL = {"type": "function", "function": {"name": "f"}}

TEXTS = st.sampled_from(["", "Hi.", "One \n", "été", f"{REMARK} now", "A summary: one\ntwo"])
PARTS = st.lists(
    TEXTS.map(lambda text: {"type": "text", "text": text})
    | TEXTS.map(lambda text: {"type": "refusal", "refusal": text})
    | st.sampled_from([IMAGE, {"type": "file", "file": {"file_id": "x"}, "media": "mine"}]),
    max_size=3,
)
ARGUMENTS = st.sampled_from(["", "{}", '{"a": 1.0, "b": ["x 2.0"]}', "2.0", "no json"])


@st.composite
def said(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(["system", "developer", "user", "user", "assistant", "tool"]))
    message: dict[str, Any] = {"role": role}
    if draw(st.integers(0, 9)):
        message["content"] = draw(TEXTS | st.none() | PARTS)
    if role == "assistant" and draw(st.booleans()):
        function = {"name": "f", "arguments": draw(ARGUMENTS)}
        message["tool_calls"] = draw(st.sampled_from([[], [{"id": "one", "function": function}]]))
    if role == "tool":
        message["tool_call_id"] = draw(st.sampled_from(["one", "other"]))
    return message


@settings(max_examples=300, deadline=None)
@given(st.lists(said(), max_size=8))
def test_one_look_finds_what_each_message_tells(messages: Sequence[Message]) -> None:
    voices = Voices.of(messages)
    roles = [message["role"] for message in messages]
    people = [m for m in messages if m["role"] == "user" and not is_remark(m)]
    assert [messages[at] for at in voices.asked] == people
    assert voices.words == [plain_text(message) for message in people]
    assert voices.replies == [at for at, role in enumerate(roles) if role == "assistant"]
    apart = [m for m in messages if m["role"] in ("system", "developer") or is_remark(m)]
    assert list(voices.apart.values()) == apart
    last = [message for message in messages if not is_remark(message)][-1:]
    assert voices.asks == (last == people[-1:] != [])
    if not voices.shows:
        assert without_data(messages) == tuple(messages)
        assert not media_of(messages)
    assert len(media_of(messages)) == sum(len(described(message)) for message in messages)


@settings(max_examples=200, deadline=None)
@given(st.lists(said(), min_size=1, max_size=8), st.sampled_from([(), (TOOL,)]), st.binary())
def test_keys_are_what_each_of_them_is_alone(
    messages: Sequence[Message], tools: tuple[Any, ...], key: bytes
) -> None:
    asked = TurnRequest(
        dialect="openai_chat",
        model="m",
        messages=tuple(messages),
        sampling=Sampling(),
        tools=tools,
        hash_key=key,
    )
    keys = Keys.of(asked, KEY_ID)
    start = seed(KEY_ID, "m", key)
    assert (keys.start, keys.chain) == (start, chain(messages, start, key))
    assert keys.prefixes == prefixes(messages, start, keys.chain)
    assert keys.request == request_hash(messages, tools, start)
    assert keys.head == head_hash(messages, tools, key)


def test_the_hashes_of_a_conversation_are_what_their_definitions_say() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Look: "}, IMAGE]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "x", "function": {"name": "f", "arguments": '{"b": 1.0, "a": "1.0"}'}},
                {"id": "y", "function": {"name": "g", "arguments": " "}},
            ],
        },
        {"role": "tool", "tool_call_id": "y", "content": "done\n"},
        {"role": "user", "content": f"{REMARK} it is late"},
        {"role": "tool", "tool_call_id": "z", "content": "lost"},
    ]
    calls = [["f", b'json{"a":"1.0","b":1}'], ["g", b"json{}"]]
    forms = [
        None,
        ["user", "Ann", ["Look: ", {"media": ["image", "ab"]}], [], None],
        ["assistant", None, "", calls, None],
        ["tool", None, "done", [], 1],
        None,
        ["tool", None, "lost", [], -1],
    ]
    current, expected = START, []
    for form in forms:
        if form is not None:
            current = sha256(current + msgspec.msgpack.encode(form)).digest()
        expected.append(current)
    assert chain(messages, START) == expected
    bare = {key: IMAGE[key] for key in ("type", "media")}
    shown = [*messages]
    shown[1] = {**messages[1], "content": [{"type": "text", "text": "Look: "}, bare]}
    whole = json.dumps([shown, [TOOL]], sort_keys=True, separators=(",", ":"))
    assert request_hash(messages, (TOOL,), START) == sha256(START + whole.encode()).digest()
    apart = json.dumps(["Be brief.", f"{REMARK} it is late"], separators=(",", ":"))
    tools = json.dumps([TOOL], sort_keys=True, separators=(",", ":"))
    halves = [sha256(b"k" + text.encode()).digest()[:16] for text in (apart, tools)]
    assert head_hash(messages, (TOOL,), b"k") == b"".join(halves)
