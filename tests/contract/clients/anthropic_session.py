"""Runs in an environment that holds the official Anthropic client and nothing of this project.

Does what its first argument names against the gateway at ANTHROPIC_BASE_URL, and prints what it
saw as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal, get_args

import anthropic
from anthropic.lib.tools import BetaAbstractMemoryTool
from anthropic.types.beta import BetaMemoryTool20250818Command

#: A model that says anything is made to call, and bounded in what it says then.
FORCED = "FORCED" in os.environ
CITY: dict[str, Any] = {"enum": ["Oslo", "Bergen"]} if FORCED else {"type": "string"}
City: Any = Literal["Oslo", "Bergen"] if FORCED else str
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": CITY}}
if FORCED:
    SCHEMA |= {"required": ["city"], "additionalProperties": False}
TOOL = {
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "input_schema": SCHEMA,
}
CALL: dict[str, Any] = {
    "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    "max_tokens": 900,
}
SAY: dict[str, Any] = {"tool_choice": {"type": "none"}, "max_tokens": 24}
#: The runner goes on as long as there are calls.
RUNS: dict[str, Any] = {"max_iterations": 2}
if not FORCED:
    CALL = SAY = RUNS = {}
ASK: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 400,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [TOOL],
}


def answered(message: Any) -> dict[str, Any]:
    """The request that follows a message with tool calls, results in the order of completion."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.input['city']}: 21"}
        for block in message.content
        if block.type == "tool_use"
    ]
    told = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results[::-1]},
    ]
    return {**ASK, **SAY, "messages": [*ASK["messages"], *told]}


def plain() -> dict[str, Any]:
    with anthropic.Anthropic(max_retries=0) as client:
        counted = client.messages.count_tokens(
            **{name: value for name, value in ASK.items() if name != "max_tokens"}
        )
        first = client.messages.create(**{**ASK, **CALL})
        last = client.messages.create(**answered(first))
        models = [model.id for model in client.models.list(limit=1)]
        card = client.models.retrieve(models[0])
    return {
        "models": models,
        "card": card.to_dict(mode="json"),
        "counted": counted.input_tokens,
        "first": first.to_dict(),
        "last": last.to_dict(),
        "request_id": first._request_id,
    }


async def streamed() -> dict[str, Any]:
    kinds: list[str] = []
    async with anthropic.AsyncAnthropic(max_retries=0) as client:
        async with client.messages.stream(**{**ASK, **CALL}) as stream:
            async for event in stream:
                if event.type not in kinds:
                    kinds.append(event.type)
            first = await stream.get_final_message()
        async with client.messages.stream(**answered(first)) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            last = await stream.get_final_message()
    return {"kinds": kinds, "text": text, "first": first.to_dict(), "last": last.to_dict()}


def runner() -> dict[str, Any]:
    @anthropic.beta_tool
    def get_weather(city: City) -> str:
        """Tells the weather of a city."""
        return f"{city}: 21"

    with anthropic.Anthropic(max_retries=0) as client:
        ask = {name: value for name, value in {**ASK, **CALL}.items() if name != "tools"}
        messages = [*client.beta.messages.tool_runner(**ask, **RUNS, tools=[get_weather])]
    return {"messages": [message.to_dict() for message in messages]}


class Notes(BetaAbstractMemoryTool):
    """A memory that holds nothing and tells what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []

    def _asked(self, command: Any) -> str:
        self.asked.append(command.to_dict())
        return "Done."

    view = create = str_replace = insert = delete = rename = _asked


def memory() -> dict[str, Any]:
    """The client's own tool is known by its type alone, and what it is asked is typed."""
    notes = Notes()
    with anthropic.Anthropic(max_retries=0) as client:
        ask = {name: value for name, value in ASK.items() if name != "tools"}
        client.beta.messages.tool_runner(**ask, tools=[notes]).until_done()
    commands = get_args(get_args(BetaMemoryTool20250818Command)[0])
    fields = sorted({name for command in commands for name in command.model_fields})
    return {"asked": notes.asked, "fields": fields}


def errors() -> dict[str, Any]:
    seen = {}
    with anthropic.Anthropic(max_retries=0) as client:
        for name, changed, key in (
            ("key", {}, "wrong"),
            ("model", {"model": "other"}, None),
            ("length", {"messages": [{"role": "user", "content": "a b " * 9000}]}, None),
            ("range", {"extra_body": {"temperature": 9}}, None),
            *(() if FORCED else (("overloaded", {}, None),)),
        ):
            asking = client if key is None else client.with_options(api_key=key)
            try:
                asking.messages.create(**{**ASK, **changed})
            except anthropic.APIStatusError as error:
                seen[name] = {
                    "class": type(error).__name__,
                    "status": error.status_code,
                    "message": error.message,
                    "request_id": error.request_id,
                }
    return seen


DOINGS = {"plain": plain, "runner": runner, "memory": memory, "errors": errors}

if __name__ == "__main__":
    name = sys.argv[1]
    seen = asyncio.run(streamed()) if name == "streamed" else DOINGS[name]()
    sys.stdout.write(json.dumps(seen))
