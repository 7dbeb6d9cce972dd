"""Runs in an environment that holds pydantic-ai: one agent with one tool.

The first argument is the API, `chat`, `responses` or `messages`, the second `plain` or `streamed`.
A model that says anything is FORCED to call, and bounded in what it says then.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterable
from typing import Any, Literal

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel, "messages": AnthropicModel}
FORCED = "FORCED" in os.environ
City: Any = Literal["Oslo", "Bergen"] if FORCED else str
CALL: Any = {"tool_choice": ["get_weather"], "parallel_tool_calls": False, "max_tokens": 900}
SAY: Any = {"tool_choice": "none", "max_tokens": 24}
RAN: list[str] = []
HEARD: list[str] = []


async def get_weather(city: City) -> str:
    """Tells the weather of a city."""
    RAN.append(city)
    return f"{city}: 21"


class Forced(AbstractCapability[Any]):
    """A call first, then words."""

    def get_model_settings(self) -> Any:
        return lambda context: SAY if RAN else CALL


async def listened(_: Any, events: AsyncIterable[Any]) -> None:
    """That there is a listener makes every request a stream."""
    HEARD.extend([type(event).__name__ async for event in events])


async def main(api: str, how: str) -> None:
    # A reply without words is asked for again.
    more: Any = {"capabilities": [Forced()], "retries": 20} if FORCED else {}
    # Tags of reasoning that it finds in a text would be left out of it.
    profile: Any = (
        {"profile": {"thinking_tags": ("<never said>", "</never said>")}}
        if FORCED and api == "chat"
        else {}
    )
    model = MODELS[api]("tiny", **profile)
    agent = Agent(model, instructions="Be brief.", tools=[get_weather], **more)
    handler = listened if how == "streamed" else None
    run = await agent.run("Weather?", event_stream_handler=handler)
    assert ("PartDeltaEvent" in HEARD) == (how == "streamed")
    usage = run.usage() if callable(run.usage) else run.usage
    told = [usage.requests, usage.input_tokens, usage.output_tokens]
    sys.stdout.write(json.dumps({"answer": run.output, "ran": RAN, "usage": told}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
