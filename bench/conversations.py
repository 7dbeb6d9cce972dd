"""What the clients say: short questions, and coding sessions that grow by two messages a turn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

#: Requests of a session in the measured part have 36, 38, 40, 42 and 44 messages.
OPENING, STEPS = 34, 5
TOOLS = 8

_WORDS = (
    "the", "model", "reads", "a", "file", "then", "writes", "test", "code", "for", "server",
    "config", "value", "error", "line", "import", "return", "class", "def", "async", "await",
    "result", "token", "path", "user", "build", "cache", "queue", "retry", "index", "batch",
    "sample", "value", "check", "parse", "data",
)  # fmt: skip


class Conversation:
    """One client's exchange: ask with `body`, tell the answer with `hear`, until `done`."""

    def __init__(
        self,
        messages: Sequence[dict[str, Any]],
        follow_ups: Sequence[str] = (),
        *,
        model: str,
        max_tokens: int,
        stream: bool = False,
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._messages = list(messages)
        self._follow_ups = list(follow_ups)
        self._rest: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "stream": stream}
        if tools:
            self._rest["tools"] = list(tools)
        self.done = False

    def body(self) -> bytes:
        return _encode({"messages": self._messages, **self._rest})

    def hear(self, reply: bytes) -> None:
        """Take the reply in and answer it: the called tool's output, or words of the user."""
        if not self._follow_ups:
            self.done = True
            return
        message = streamed(reply) if self._rest["stream"] else whole(reply)
        said: dict[str, Any] = {"role": "user", "content": self._follow_ups.pop(0)}
        if calls := message.get("tool_calls"):
            said |= {"role": "tool", "tool_call_id": calls[0]["id"]}
        self._messages += [message, said]


def whole(reply: bytes) -> dict[str, Any]:
    """The message of a reply that came in one piece, as a client sends it back."""
    message: dict[str, Any] = _decode(reply)["choices"][0]["message"]
    kept = ("role", "content", "tool_calls")
    return {name: message[name] for name in kept if message.get(name) is not None}


def streamed(reply: bytes) -> dict[str, Any]:
    """The message that a stream of chunks adds up to; its calls are not expected."""
    text = ""
    for line in reply.split(b"\n"):
        payload = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and payload != b"[DONE]":
            for choice in _decode(payload)["choices"]:
                text += choice["delta"].get("content") or ""
    return {"role": "assistant", "content": text}


class Speaker:
    """Makes conversations that are alike in size and never the same twice."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._numbers = itertools.count(1)
        self._random = random.Random(7)
        self._tools = [self._tool(index) for index in range(TOOLS)]
        self._opening = [self._turn(index) for index in range(OPENING // 2 - 1)]
        self._outputs = [self._code(40) for _ in range(STEPS)]
        self._system = "You are a coding agent. " + self._say(300)
        self._task = self._say(120)

    def small(self, *, max_tokens: int, stream: bool = False) -> Conversation:
        """Three messages, 0.2 kB."""
        return Conversation(
            [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": f"Hi, what is 2+{next(self._numbers)}?"},
                {"role": "user", "content": "Be brief."},
            ],
            model=self._model,
            max_tokens=max_tokens,
            stream=stream,
        )

    def agentic(self, *, max_tokens: int, stream: bool = False) -> Conversation:
        """A session with 8 tools that opens with 34 messages and is then extended 5 times."""
        task = f"Task {next(self._numbers)}. {self._task}"
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._system},
            {"role": "user", "content": task},
            *itertools.chain.from_iterable(self._opening),
        ]
        return Conversation(
            messages,
            self._outputs,
            model=self._model,
            max_tokens=max_tokens,
            stream=stream,
            tools=self._tools,
        )

    def call(self) -> tuple[str, dict[str, str]]:
        """A tool's name and arguments for it."""
        return self._tools[0]["function"]["name"], {"path": "/src/server.py", "text": "x = 1"}

    def _say(self, count: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(count))

    def _code(self, lines: int) -> str:
        return "\n".join(self._lines(lines))

    def _lines(self, count: int) -> Iterator[str]:
        pick = self._random
        for index in range(count):
            name, function = pick.choice(_WORDS), pick.choice(_WORDS)
            yield f"    {name}_{index} = {function}({pick.randint(0, 9999)})  # {self._say(3)}"

    def _tool(self, index: int) -> dict[str, Any]:
        properties = {
            name: {"type": "string", "description": self._say(12)}
            for name in self._random.sample(sorted(set(_WORDS)), 5)
        }
        function = {
            "name": f"{self._random.choice(_WORDS)}_{index}",
            "description": self._say(40),
            "parameters": {"type": "object", "properties": properties, "required": []},
        }
        return {"type": "function", "function": function}

    def _turn(self, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """A call and what it brought."""
        function = {
            "name": self._tools[index % TOOLS]["function"]["name"],
            "arguments": _encode({"path": f"/src/f{index}.py", "text": self._code(4)}).decode(),
        }
        call = {"id": f"call_{index:08d}", "type": "function", "function": function}
        return (
            {"role": "assistant", "content": self._say(30), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self._code(40)},
        )
