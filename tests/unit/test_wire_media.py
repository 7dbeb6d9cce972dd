"""Images, audio and files in each dialect: what they become, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest
from gateway.records import Message, media_of
from gateway.resolve import request_hash
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import Dialect
from gateway.wire.media import NO_MEDIA, MediaRules
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.openai_responses import OpenAIResponses
from tests.examples import examples
from tests.media import data_url, png, text_of, wav

PNG, WAV = png(), wav(1, 2)
URL = "https://example.com/a.png"
SEES = MediaRules(kinds=frozenset({"image", "audio"}))
FETCHES = MediaRules(kinds=frozenset({"image", "audio"}), fetched=True)
LIMITS = ServerSettings(max_media=2, max_media_bytes=200)
KINDS = [OpenAIChat, OpenAIResponses, AnthropicMessages]

Content = list[dict[str, Any]]


def body(kind: type[Any], content: Content) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    named = {"input": messages} if kind is OpenAIResponses else {"messages": messages}
    return {"model": "m", "max_tokens": 9, **named}


def read(
    kind: Callable[[MediaRules], Dialect], asked: Mapping[str, Any], rules: MediaRules = SEES
) -> tuple[Message, ...]:
    return kind(rules).parse(json.dumps(asked).encode(), {}, LIMITS).messages


def refusal(kind: type[Any], content: Content, rules: MediaRules = SEES) -> tuple[str, str, str]:
    with pytest.raises(InvalidRequest) as caught:
        read(kind, body(kind, content), rules)
    error = caught.value
    return str(error.param), str(error.code), error.message


def image(kind: type[Any], url: str) -> dict[str, Any]:
    if kind is OpenAIChat:
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    if kind is OpenAIResponses:
        return {"type": "input_image", "image_url": url, "detail": "low"}
    if url.startswith("data:"):
        type_, _, data = url[5:].partition(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": type_, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def said(kind: type[Any], text: str) -> dict[str, Any]:
    return {"type": "input_text" if kind is OpenAIResponses else "text", "text": text}


def description(raw: bytes, kind: str, type_: str) -> dict[str, Any]:
    digest = sha256(raw).hexdigest()
    return {"kind": kind, "type": type_, "bytes": len(raw), "sha256": digest}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_described_beside_its_data(kind: type[Any]) -> None:
    content = [said(kind, "What?"), image(kind, data_url(PNG))]
    [message] = read(kind, body(kind, content))
    text, shown = message["content"]
    assert text == {"type": "text", "text": "What?"}
    assert shown["type"] == "image_url"
    assert shown["image_url"]["url"] == data_url(PNG)
    assert shown["image_url"].get("detail") == (None if kind is AnthropicMessages else "low")
    assert shown["media"] == description(PNG, "image", "image/png")


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_alone_is_a_message(kind: type[Any]) -> None:
    [message] = read(kind, body(kind, [image(kind, data_url(PNG))]))
    assert [part["type"] for part in message["content"]] == ["image_url"]


@pytest.mark.parametrize("kind", [OpenAIChat, OpenAIResponses])
def test_audio_is_described_beside_its_data(kind: type[Any]) -> None:
    given = {"data": text_of(WAV), "format": "wav"}
    [message] = read(kind, body(kind, [{"type": "input_audio", "input_audio": given}]))
    [shown] = message["content"]
    assert shown["input_audio"] == given
    assert shown["media"] == description(WAV, "audio", "audio/wav")


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_is_passed_on_only_where_an_engine_fetches(kind: type[Any]) -> None:
    [message] = read(kind, body(kind, [image(kind, URL)]), FETCHES)
    [shown] = message["content"]
    assert shown["image_url"]["url"] == URL
    assert shown["media"] == {
        "kind": "image", "type": None, "bytes": None, "sha256": sha256(URL.encode()).hexdigest(),
    }  # fmt: skip
    _, code, words = refusal(kind, [image(kind, URL)])
    assert code == "unsupported_content"
    assert "nothing is fetched here" in words


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "/etc/passwd", "ftp://a/b.png", "a.png", "HTTP" + "s" * 9]
)
def test_no_other_address_is_passed_on(kind: type[Any], address: str) -> None:
    _, _, words = refusal(kind, [image(kind, address)], FETCHES)
    assert "http(s) address" in words


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_model_takes_neither(kind: type[Any]) -> None:
    param, code, words = refusal(kind, [said(kind, "a"), image(kind, data_url(PNG))], NO_MEDIA)
    dot = "messages.0.content.1.type"
    field = "input" if kind is OpenAIResponses else "messages"
    assert param == (dot if kind is AnthropicMessages else f"{field}[0].content[1].type")
    assert code == "unsupported_content"
    assert "his model does not take image content" in words
    only_sees = MediaRules(kinds=frozenset({"image"}))
    if kind is not AnthropicMessages:
        sound = {"type": "input_audio", "input_audio": {"data": text_of(WAV), "format": "wav"}}
        assert "audio" in refusal(kind, [sound], only_sees)[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        (data_url(PNG, "image/tiff"), "supported types are image/png"),
        (data_url(b"%PDF-1.7"), "the data is no image/png"),
        (data_url(b""), ""),
        ("data:image/png;base64,!!!!", "expected base64"),
        ("data:image/png;base64,iVBORw0", "expected base64"),
        (data_url(PNG + bytes(200)), "more than 200 bytes"),
    ],
)
def test_data_that_is_no_image(kind: type[Any], url: str, words: str) -> None:
    _, _, found = refusal(kind, [image(kind, url)])
    assert words in found


@pytest.mark.parametrize("url", ["data:,", "data:image/png,abc", "data:;base64,AAAA", "", None, 7])
def test_urls_that_hold_no_data(url: object) -> None:
    for kind, part in (
        (OpenAIChat, {"type": "image_url", "image_url": {"url": url}}),
        (OpenAIResponses, {"type": "input_image", "image_url": url}),
    ):
        param, _, _ = refusal(kind, [part])
        assert param.endswith(("image_url", "image_url.url"))


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_counted(kind: type[Any]) -> None:
    one = image(kind, data_url(PNG))
    assert len(read(kind, body(kind, [one] * 2))[0]["content"]) == 2
    assert "at most 2" in refusal(kind, [one] * 3)[2]


def test_the_bytes_tell_the_type() -> None:
    [message] = read(OpenAIChat, body(OpenAIChat, [image(OpenAIChat, data_url(PNG, "image/jpg"))]))
    assert message["content"][0]["media"]["type"] == "image/png"


def test_a_tools_result_shows_an_image() -> None:
    blocks = [
        {"type": "text", "text": "the screen"},
        image(AnthropicMessages, data_url(PNG)),
    ]
    asked = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}]},
        ],
    }  # fmt: skip
    result = read(AnthropicMessages, asked)[-1]
    assert result["role"] == "tool"
    assert [part["type"] for part in result["content"]] == ["text", "image_url"]
    items = [
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1",
         "output": [image(OpenAIResponses, data_url(PNG))]},
    ]  # fmt: skip
    result = read(OpenAIResponses, {"model": "m", "input": items})[-1]
    assert result["content"][0]["media"] == description(PNG, "image", "image/png")
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [image(OpenAIChat, data_url(PNG))]},
    ]  # fmt: skip
    result = read(OpenAIChat, {"model": "m", "messages": messages})[-1]
    assert result["content"][0]["media"] == description(PNG, "image", "image/png")


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_and_tools_show_anything(role: str) -> None:
    shown = [image(OpenAIChat, data_url(PNG))]
    messages = [{"role": role, "content": shown}, {"role": "user", "content": "a"}]
    with pytest.raises(InvalidRequest, match="only user and tool messages"):
        read(OpenAIChat, {"model": "m", "messages": messages})


@pytest.mark.parametrize("rules", [NO_MEDIA, SEES])
def test_files_of_text_are_text_and_others_refused(rules: MediaRules) -> None:
    text, pdf = data_url(b"\xc3\xa9t\xc3\xa9", "text/plain"), data_url(b"%PDF", "application/pdf")
    plain = {"media_type": "text/plain"}
    files: list[tuple[type[Any], dict[str, Any], dict[str, Any]]] = [
        (OpenAIChat, {"type": "file", "file": {"file_data": text, "filename": "a.txt"}},
         {"type": "file", "file": {"file_data": pdf}}),
        (OpenAIResponses, {"type": "input_file", "file_data": text},
         {"type": "input_file", "file_id": "file-1"}),
        (AnthropicMessages,
         {"type": "document", "source": {"type": "text", "data": "été", **plain}},
         {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}),
        (AnthropicMessages,
         {"type": "document", "source": {"type": "base64", "data": text_of("été".encode()),
                                         **plain}},
         {"type": "document"}),
    ]  # fmt: skip
    for kind, taken, other in files:
        parts = [said(kind, "Read:"), taken]
        [message] = read(kind, body(kind, parts), rules)
        assert message["content"][1] == {"type": "text", "text": "été"}
        assert refusal(kind, [other], rules)[1] == "unsupported_content"


def test_a_text_may_have_a_key_of_that_name() -> None:
    part = {"type": "text", "text": "a", "media": "x"}
    [message] = read(OpenAIChat, body(OpenAIChat, [part]))
    assert message["content"] == [part]


_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(
    [data_url(PNG), data_url(b"no"), text_of(WAV), text_of(PNG), URL, "data:", "base64", "url",
     "wav", "image/png", "text/plain", "text", "low", "\ud800"]
)  # fmt: skip
_TREES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["url", "data", "format", "type", "media_type", "file_data", "media"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
_PARTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "image_url",
                "input_image",
                "input_audio",
                "image",
                "document",
                "file",
                "input_file",
                "text",
                "input_text",
                "tool_result",
                "video_url",
            ]
        )
    },
    optional=dict.fromkeys(
        (
            "image_url",
            "input_audio",
            "source",
            "file",
            "file_data",
            "file_id",
            "detail",
            "media",
            "text",
            "content",
            "tool_use_id",
        ),
        _TREES,
    ),
)


@examples(600)
@given(
    kind=st.sampled_from(KINDS),
    parts=st.lists(_PARTS, max_size=3),
    rules=st.sampled_from([NO_MEDIA, SEES, FETCHES]),
)
def test_whatever_a_part_holds_it_is_read_or_refused(
    kind: type[Any], parts: Content, rules: MediaRules
) -> None:
    asked = json.dumps(body(kind, parts)).encode("utf-8", "surrogatepass")
    try:
        messages = kind(rules).parse(asked, {}, LIMITS).messages
    except InvalidRequest:
        return
    assert len(request_hash(messages, ())) == 32
    assert all(one.source for one in media_of(messages))
    assert {one.kind for one in media_of(messages)} <= rules.kinds
