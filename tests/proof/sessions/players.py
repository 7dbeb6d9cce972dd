"""Clients of each dialect, written against the protocols' documents and nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.proof.sessions.plan import Turn

SYSTEM = "You are a helpful assistant."
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["animal"],
}
TOOLS = ("look", "feed")


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reply as its client read it; `calls` are (id, name), `raw` is what it sends back."""

    id: str
    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    raw: Any


class Player(Protocol):
    """One conversation in one dialect. `hear` and `ask` go on with it."""

    path: str

    def body(self, turn: Turn) -> dict[str, Any]: ...

    def read(self, reply: dict[str, Any]) -> Said: ...

    def put_together(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """The reply that a stream's events tell, in the form of a whole one."""
        ...

    def ask(self, text: str) -> None: ...

    def hear(self, said: Said, results: Sequence[str]) -> None: ...

    def edit(self) -> None:
        """Change what was said at first, as a client that lets its user edit does."""
        ...


@dataclass
class Chat:
    path: str = "/v1/chat/completions"
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )

    def body(self, turn: Turn) -> dict[str, Any]:
        body = {
            "model": "tiny",
            "messages": self.messages,
            "stream": turn.stream,
            "chat_template_kwargs": {"enable_thinking": turn.thinking},
            **turn.sampling,
        }
        if turn.tools:
            functions = [{"name": name, "parameters": SCHEMA} for name in TOOLS]
            body["tools"] = [{"type": "function", "function": one} for one in functions]
            body["tool_choice"] = "required" if turn.forced else "auto"
            body["parallel_tool_calls"] = turn.parallel
        if turn.choices > 1:
            body["n"] = turn.choices
        return body

    def read(self, reply: dict[str, Any]) -> Said:
        message = max(reply["choices"], key=lambda choice: choice["index"])["message"]
        calls = message.get("tool_calls") or []
        return Said(
            id=reply["id"].removeprefix("chatcmpl-") if len(reply["choices"]) == 1 else "",
            text=message["content"] or "",
            reasoning=message.get("reasoning_content") or "",
            calls=tuple((call["id"], call["function"]["name"]) for call in calls),
            raw=message,
        )

    def put_together(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        choices: dict[int, dict[str, Any]] = {}
        for event in events:
            for part in event["choices"]:
                message = choices.setdefault(
                    part["index"],
                    {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []},
                )
                delta = part["delta"]
                message["content"] += delta.get("content") or ""
                message["reasoning_content"] += delta.get("reasoning_content") or ""
                for call in delta.get("tool_calls") or ():
                    if call["index"] == len(message["tool_calls"]):
                        whole = {"name": call["function"]["name"], "arguments": ""}
                        message["tool_calls"].append(
                            {"id": call["id"], "type": "function", "function": whole}
                        )
                    function = message["tool_calls"][call["index"]]["function"]
                    function["arguments"] += call["function"].get("arguments") or ""
        return {
            "id": events[0]["id"],
            "choices": [{"index": at, "message": choices[at]} for at in sorted(choices)],
        }

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def hear(self, said: Said, results: Sequence[str]) -> None:
        self.messages.append(
            {key: value for key, value in said.raw.items() if value or key == "content"}
        )
        for (id_, _), result in zip(said.calls, results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": id_, "content": result})

    def edit(self) -> None:
        self.messages[1] = {"role": "user", "content": f"{self.messages[1]['content']} (edited)"}


@dataclass
class Messages:
    path: str = "/v1/messages"
    messages: list[dict[str, Any]] = field(default_factory=list)

    def body(self, turn: Turn) -> dict[str, Any]:
        sampling = dict(turn.sampling)
        if stop := sampling.pop("stop", None):
            sampling["stop_sequences"] = stop
        for name in ("logit_bias", "presence_penalty"):
            sampling.pop(name, None)
        body = {
            "model": "tiny",
            "system": SYSTEM,
            "messages": self.messages,
            "stream": turn.stream,
            "thinking": {"type": "adaptive" if turn.thinking else "disabled"},
            **sampling,
        }
        if turn.tools:
            body["tools"] = [{"name": name, "input_schema": SCHEMA} for name in TOOLS]
            body["tool_choice"] = {
                "type": "any" if turn.forced else "auto",
                "disable_parallel_tool_use": not turn.parallel,
            }
        return body

    def read(self, reply: dict[str, Any]) -> Said:
        blocks = reply["content"]
        return Said(
            id=reply["id"].removeprefix("msg_"),
            text="".join(block["text"] for block in blocks if block["type"] == "text"),
            reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            calls=tuple(
                (block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"
            ),
            raw=blocks,
        )

    def put_together(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        inputs: dict[int, str] = {}
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                if delta["type"] == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                else:
                    (name,) = set(delta) - {"type"}
                    block[name] = block.get(name, "") + delta[name]
        for index, text in inputs.items():
            blocks[index]["input"] = json.loads(text or "{}")
        return {"id": events[0]["message"]["id"], "content": blocks}

    def ask(self, text: str) -> None:
        part = {"type": "text", "text": text}
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1]["content"].append(part)
        else:
            self.messages.append({"role": "user", "content": [part]})

    def hear(self, said: Said, results: Sequence[str]) -> None:
        # An empty reply cannot be sent back in this protocol; agents write something instead.
        blocks = said.raw or [{"type": "text", "text": "(nothing)"}]
        self.messages.append({"role": "assistant", "content": blocks})
        answers = [
            {"type": "tool_result", "tool_use_id": id_, "content": result}
            for (id_, _), result in zip(said.calls, results, strict=True)
        ]
        if answers:
            self.messages.append({"role": "user", "content": answers})

    def edit(self) -> None:
        first = self.messages[0]["content"][0]
        self.messages[0]["content"][0] = {**first, "text": f"{first['text']} (edited)"}


@dataclass
class Responses:
    """With `stored`, only what is new is sent, after the id of the response before it."""

    stored: bool
    path: str = "/v1/responses"
    items: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def body(self, turn: Turn) -> dict[str, Any]:
        sampling = {
            name: value for name, value in turn.sampling.items() if name in ("temperature", "top_p")
        }
        body = {
            "model": "tiny",
            "instructions": SYSTEM,
            "input": self.items,
            "stream": turn.stream,
            "max_output_tokens": turn.sampling["max_tokens"],
            "chat_template_kwargs": {"enable_thinking": turn.thinking},
            **sampling,
        }
        if self.stored and self.ids:
            body["previous_response_id"] = self.ids[-1]
        if turn.tools:
            body["tools"] = [
                {"type": "function", "name": name, "parameters": SCHEMA, "strict": False}
                for name in TOOLS
            ]
            body["tool_choice"] = "required" if turn.forced else "auto"
            body["parallel_tool_calls"] = turn.parallel
        return body

    def read(self, reply: dict[str, Any]) -> Said:
        output = reply["output"]

        def texts(kind: str, *parts: str) -> str:
            return "".join(
                part["text"]
                for item in output
                if item["type"] == kind
                for name in parts
                for part in item.get(name) or ()
            )

        return Said(
            id=reply["id"].removeprefix("resp_"),
            text=texts("message", "content"),
            reasoning=texts("reasoning", "content"),
            calls=tuple(
                (item["call_id"], item["name"])
                for item in output
                if item["type"] == "function_call"
            ),
            raw=reply,
        )

    def put_together(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = events[-1]["response"]
        return whole

    def ask(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def hear(self, said: Said, results: Sequence[str]) -> None:
        if self.stored:
            self.items = []
            self.ids.append(said.raw["id"])
        else:
            self.items += said.raw["output"]
        for (id_, _), result in zip(said.calls, results, strict=True):
            self.items.append({"type": "function_call_output", "call_id": id_, "output": result})

    def edit(self) -> None:
        if self.stored:
            # Another go from the response before the last one; results of its calls are moot.
            self.ids = self.ids[:-1]
            self.items = [item for item in self.items if "call_id" not in item]
        else:
            self.items[0] = {"role": "user", "content": f"{self.items[0]['content']} (edited)"}


@dataclass
class Completions:
    """Prompts as they stand; there is no conversation that the server could know of."""

    path: str = "/v1/completions"
    prompt: str = f"{SYSTEM}\n"

    def body(self, turn: Turn) -> dict[str, Any]:
        return {"model": "tiny", "prompt": self.prompt, "stream": turn.stream, **turn.sampling}

    def read(self, reply: dict[str, Any]) -> Said:
        [choice] = reply["choices"]
        text = choice["text"]
        return Said(
            id=reply["id"].removeprefix("cmpl-"), text=text, reasoning="", calls=(), raw=text
        )

    def put_together(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        text = "".join(part["text"] for event in events for part in event["choices"])
        return {"id": events[0]["id"], "choices": [{"text": text}]}

    def ask(self, text: str) -> None:
        self.prompt += f"{text}\n"

    def hear(self, said: Said, results: Sequence[str]) -> None:
        self.prompt += said.text + "".join(results)

    def edit(self) -> None:
        self.prompt = self.prompt.replace("helpful", "hopeful")


def player(dialect: str) -> Player:
    made: dict[str, Player] = {
        "chat": Chat(),
        "messages": Messages(),
        "responses": Responses(stored=False),
        "responses by id": Responses(stored=True),
        "completions": Completions(),
    }
    return made[dialect]
