"""What the bench's upstream and clients say is what an engine and an agent would."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from bench import scripts
from bench.conversations import OPENING, STEPS, TOOLS, Speaker, streamed
from bench.model import STOP
from gateway.engine.chunks import ChunkReader
from gateway.engine.codec import EventSplitter, decode_event
from gateway.records import FinishReason, PolicyKind, PolicyRef
from gateway.tokens.tokenizer import Tokenizer
from tests.tiny_model import make_model

_CALL = ("get_weather", {"city": "Oslo"})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_model(tmp_path_factory.mktemp("bench") / "model"))


def body_of(records: list[bytes]) -> bytes:
    """The body of a chunked reply."""
    _, _, rest = b"".join(records).partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            assert rest == b"\r\n"
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


@pytest.mark.parametrize(("interval", "events_of_120"), [(1, 120), (32, 5), (119, 2), (500, 2)])
def test_the_gateway_reads_exactly_the_tokens_of_a_reply(
    tokenizer: Tokenizer, interval: int, events_of_120: int
) -> None:
    reply = scripts.compose(tokenizer, 120, _CALL)
    records = scripts.generate(reply, interval)
    assert (len(reply.ids), len(records)) == (120, events_of_120)
    policy = PolicyRef(lineage_id=UUID(int=1), version=0, kind=PolicyKind.BASE)
    reader = ChunkReader(policy, "upstream")
    events = EventSplitter().feed(body_of(records))
    chunks = [reader.read(decode_event(event, "upstream")) for event in events]
    ids = [id_ for chunk in chunks if chunk for id_ in chunk.ids]
    assert ids == list(reply.ids)
    assert ids[-1] == tokenizer.id_of(STOP)
    assert chunks[-1] is not None
    finish = chunks[-1].finish
    assert finish is not None
    assert (finish.reason, finish.detail) == (FinishReason.STOP, None)


def test_a_reply_ends_with_its_call(tokenizer: Tokenizer) -> None:
    reply = scripts.compose(tokenizer, 120, _CALL)
    text = tokenizer.decode(reply.ids)
    content, _, call = text.partition("\n<tool_call>\n")
    assert content == reply.content
    assert json.loads(call.partition("\n</tool_call>")[0]) == {
        "name": "get_weather",
        "arguments": {"city": "Oslo"},
    }


def test_chat_says_the_same_words_streamed_and_whole(tokenizer: Tokenizer) -> None:
    reply = scripts.compose(tokenizer, 24)
    stream = scripts.chat_stream(reply)
    assert len(stream) == 24
    assert streamed(body_of(stream)) == {"role": "assistant", "content": reply.content}
    [whole] = scripts.chat_whole(reply)
    answer = json.loads(whole.partition(b"\r\n\r\n")[2])
    assert answer["choices"][0]["message"]["content"] == reply.content
    assert answer["usage"]["completion_tokens"] == 24


def test_the_engine_names_its_model(tmp_path: Path) -> None:
    replies = scripts.status(tmp_path, 512)
    info = json.loads(replies["/model_info"].partition(b"\r\n\r\n")[2])
    assert info["model_path"] == str(tmp_path)
    assert {"/v1/models", "/v1/loads", "/abort_request"} < set(replies)


def test_a_session_grows_by_what_was_said_and_what_its_call_brought() -> None:
    conversation = Speaker("m").agentic(max_tokens=8)
    call = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Reading. " * 90, "tool_calls": [call]}
    reply = json.dumps({"choices": [{"message": {**message, "refusal": None}}]}).encode()
    sizes, counts = [], []
    before = json.loads(conversation.body())["messages"]
    assert len(before) == OPENING
    for _ in range(STEPS):
        conversation.hear(reply)
        body = conversation.body()
        after = json.loads(body)["messages"]
        assert after[:-2] == before
        assert after[-2] == message
        assert after[-1]["role"] == "tool"
        assert after[-1]["tool_call_id"] == "call_7"
        before = after
        sizes.append(len(body))
        counts.append(len(after))
    assert counts == [36, 38, 40, 42, 44]
    assert sum(sizes) / STEPS == pytest.approx(57_000, rel=0.03)
    assert len(json.loads(conversation.body())["tools"]) == TOOLS == 8
    conversation.hear(reply)
    assert conversation.done


def test_no_two_conversations_are_the_same() -> None:
    speaker = Speaker("m")
    bodies = {speaker.small(max_tokens=8).body() for _ in range(50)}
    bodies |= {speaker.agentic(max_tokens=8).body() for _ in range(5)}
    assert len(bodies) == 55
