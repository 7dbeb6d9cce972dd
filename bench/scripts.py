"""What the upstream says, byte for byte: SGLang's protocol to the gateway, chat to the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from bench.model import CONTEXT, NAME, STOP
from gateway.tokens.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode
_LOGPROB = -0.1234567

_PROSE = (
    " The next step is to read the file, look at how the server loads its settings, and then"
    " write a test that fails for the right reason before anything is changed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The tokens of one reply: ids, the text of each, and the call that they end with."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    content: str
    call: tuple[str, dict[str, str]] | None = None


def compose(
    tokenizer: Tokenizer, tokens: int, call: tuple[str, dict[str, str]] | None = None
) -> Reply:
    """A reply of exactly so many tokens, the stop token included: prose, then the call."""
    stop = tokenizer.id_of(STOP)
    assert stop is not None
    called: list[int] = []
    if call is not None:
        name, arguments = call
        text = f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        called = tokenizer.encode(text)
    room = tokens - 1 - len(called)
    prose = tokenizer.encode(_PROSE.strip() + _PROSE * (1 + room // 16))[:room]
    ids = (*prose, *called, stop)
    texts = tuple(tokenizer.decode([id_]) for id_ in ids[:-1])
    return Reply(ids=ids, texts=(*texts, ""), content=tokenizer.decode(prose), call=call)


def status(model: Path, vocab_size: int) -> dict[str, bytes]:
    """Replies by path to what the gateway asks an engine for beside generating."""
    card = {"id": NAME, "root": str(model), "parent": None, "max_model_len": CONTEXT}
    load = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_total_num_tokens": vocab_size * 8}
    info = {"model_path": str(model), "served_model_name": NAME, "weight_version": "default"}
    return {
        "/model_info": json_reply(info),
        "/v1/models": json_reply({"object": "list", "data": [card]}),
        "/v1/loads": json_reply({"loads": [load]}),
        "/abort_request": json_reply({}),
    }


def generate(reply: Reply, interval: int = 1) -> list[bytes]:
    """Records of a streamed `/generate`, as SGLang sends deltas.

    The first token comes at once, then `interval` of them an event.
    """
    events = []
    ends = [*range(1, len(reply.ids), interval), len(reply.ids)]
    for start, count in pairwise([0, *ends]):
        last = count == len(reply.ids)
        ids, text = reply.ids[start:count], "".join(reply.texts[start:count])
        meta: dict[str, Any] = {
            "id": "0123456789abcdef0123456789abcdef",
            "finish_reason": {"type": "stop", "matched": ids[-1]} if last else None,
            "prompt_tokens": 100,
            "weight_version": "default",
            "total_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": [[_LOGPROB, id_, None] for id_ in ids],
            "completion_tokens": count,
            "cached_tokens": 0,
            "e2e_latency": 0.5,
        }
        events.append({"text": text, "output_ids": list(ids), "meta_info": meta})
    return _stream([[event] for event in events])


def chat_stream(reply: Reply) -> list[bytes]:
    """Records of a streamed chat completion; a call in the reply is left as text."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**_shared("chat.completion.chunk"), "choices": [choice]}

    chunks = [[chunk({"content": text})] for text in reply.texts]
    chunks[0].insert(0, chunk({"role": "assistant", "content": ""}))
    chunks[-1] = [chunk({}, "stop")]
    return _stream(chunks)


def chat_whole(reply: Reply) -> list[bytes]:
    """The one record of a chat completion that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.call is not None:
        name, arguments = reply.call
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
    reason = "tool_calls" if reply.call else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    count = len(reply.ids)
    usage = {"prompt_tokens": 100, "completion_tokens": count, "total_tokens": 100 + count}
    return [json_reply({**_shared("chat.completion"), "choices": [choice], "usage": usage})]


def json_reply(content: dict[str, Any]) -> bytes:
    """A whole HTTP response."""
    body = _encode(content)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _shared(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-0123456789", "object": kind, "created": 1_750_000_000, "model": NAME}


def _stream(bursts: Sequence[Sequence[dict[str, Any]]]) -> list[bytes]:
    """Records of an event stream, one a burst; the head goes with the first of them."""
    records = []
    for burst in bursts:
        payload = b"".join(b"data: " + _encode(event) + b"\n\n" for event in burst)
        records.append(_chunk(payload))
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    records[0] = head + records[0]
    records[-1] += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return records


def _chunk(payload: bytes) -> bytes:
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"
