"""What each protocol asks with, what it calls its errors, and how its replies are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`param` is the field that holds the prompt, `limit` the one that bounds the reply.

    `parts` are bodies with something in them that a model of text does not take, by what errors
    call it. `kinds` are types of errors by status where they are not OpenAI's.
    """

    name: str
    path: str
    param: str
    prompt: Mapping[str, Any]
    limit: str = "max_tokens"
    stop: str | None = "stop"
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)

    def body(self, text: str = "The quick brown fox?", **more: Any) -> dict[str, Any]:
        """A request, and a text that its prompt has."""
        asked = json.loads(json.dumps(self.prompt).replace("TEXT", text))
        return {"model": "tiny", **asked, **more}

    @property
    def is_anthropic(self) -> bool:
        return bool(self.kinds)

    def text(self, events: Iterable[Mapping[str, Any]]) -> str:
        """What the events of a stream, or the one object of a reply, say."""
        return "".join(map(self._text, events))

    def ends(self, events: Iterable[Mapping[str, Any]]) -> list[str]:
        """Every word about why a reply ended, in the order in which they come."""
        return [word for event in events for word in self._ends(event) if word]

    def _text(self, event: Mapping[str, Any]) -> str:
        if self.name == "openai_responses":
            if "output" in event:
                parts = [part for item in event["output"] for part in item.get("content") or ()]
                return "".join(part["text"] for part in parts if part["type"] == "output_text")
            return event["delta"] if event.get("type") == "response.output_text.delta" else ""
        if self.is_anthropic:
            blocks = [*event.get("content", ()), event.get("delta", {})]
            return "".join(block.get("text", "") for block in blocks)
        said = ""
        for choice in event["choices"]:
            held = choice.get("delta") or choice.get("message") or choice
            said += held.get("content") or held.get("text") or ""
        return said

    def _ends(self, event: Mapping[str, Any]) -> Sequence[str | None]:
        if self.name == "openai_responses":
            status = event.get("response", event).get("status")
            return () if status == "in_progress" else (status,)
        if self.is_anthropic:
            return (event.get("stop_reason"), event.get("delta", {}).get("stop_reason"))
        return [choice["finish_reason"] for choice in event["choices"]]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, without the mark of its end."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


async def first_event(answer: aiohttp.ClientResponse) -> bytes:
    """The first line that is no comment: something has been sampled, however long that took."""
    while (line := await answer.content.readline()).startswith(b":") or line == b"\n":
        pass
    return line


def _chat(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def _messages(**block: Any) -> dict[str, Any]:
    return {**_chat([block]), "max_tokens": 64}


def _input(**part: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [part]}]}


_CLIP = {"data": "UklGRg==", "format": "wav"}

DIALECTS = (
    Dialect(
        name="openai_chat",
        path="/v1/chat/completions",
        param="messages",
        prompt=_chat("TEXT"),
        parts={
            "image": _chat([{"type": "image_url", "image_url": {"url": "data:,"}}]),
            "audio": _chat([{"type": "input_audio", "input_audio": _CLIP}]),
            "video": _chat([{"type": "video_url", "video_url": {"url": "data:,"}}]),
            "file": _chat([{"type": "file", "file": {"file_id": "file-1"}}]),
        },
    ),
    Dialect(
        name="openai_completions",
        path="/v1/completions",
        param="prompt",
        prompt={"prompt": "TEXT", "max_tokens": 64},
    ),
    Dialect(
        name="openai_responses",
        path="/v1/responses",
        param="input",
        prompt={"input": "TEXT"},
        limit="max_output_tokens",
        stop=None,
        parts={
            "image": _input(type="input_image", image_url="x"),
            "audio": _input(type="input_audio", input_audio=_CLIP),
            "file": _input(type="input_file", file_id="file-1"),
        },
    ),
    Dialect(
        name="anthropic_messages",
        path="/v1/messages",
        param="messages",
        prompt={**_chat("TEXT"), "max_tokens": 64},
        stop="stop_sequences",
        parts={
            "image": _messages(type="image", source={"type": "url"}),
            "document": _messages(type="document", source={"type": "url"}),
        },
        kinds={
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            405: "invalid_request_error",
            408: "timeout_error",
            413: "request_too_large",
            415: "invalid_request_error",
            429: "rate_limit_error",
            502: "api_error",
            503: "api_error",
            504: "timeout_error",
            529: "overloaded_error",
        },
    ),
)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
