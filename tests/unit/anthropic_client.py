"""What a client of the Messages API makes of a stream."""

from __future__ import annotations

import json
from typing import Any


def events(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event; its name is its type. Comments are left out."""
    found: list[dict[str, Any]] = []
    for block in stream.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def message_of(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, put together by the rules of the API's documentation.

    Checks them as well: one block at a time, indexes counted from 0, nothing after the end.
    """
    first, *rest = [event for event in stream if event["type"] != "ping"]
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert message["content"] == []
    texts: dict[str, str] = {}
    block: dict[str, Any] | None = None
    while rest[0]["type"].startswith("content_block"):
        event = rest.pop(0)
        if event["type"] == "content_block_start":
            assert block is None
            block = event["content_block"]
            assert event["index"] == len(message["content"])
            message["content"].append(block)
            texts = {}
            continue
        assert block is not None
        assert event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_delta":
            kind = event["delta"].pop("type")
            [(key, value)] = event["delta"].items()
            allowed = {
                "text_delta": ("text", "text"),
                "thinking_delta": ("thinking", "thinking"),
                "signature_delta": ("thinking", "signature"),
                "input_json_delta": ("tool_use", "partial_json"),
            }
            assert allowed[kind] == (block["type"], key)
            texts[key] = texts.get(key, "") + value
            continue
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(texts.pop("partial_json", "{}"))
        block.update(texts)
        block = None
    assert block is None
    delta, stop = rest
    assert (delta["type"], stop["type"]) == ("message_delta", "message_stop")
    message.update(delta["delta"])
    message["usage"].update(delta["usage"])
    return message
