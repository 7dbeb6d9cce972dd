"""Runs in an environment that holds pydantic-ai: one agent with one tool.

The first argument is the API, `chat`, `responses` or `messages`, the second `plain` or `streamed`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel, "messages": AnthropicModel}
RAN: list[str] = []
HEARD: list[str] = []


async def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    RAN.append(city)
    return f"{city}: 21"


async def listened(_: Any, events: AsyncIterable[Any]) -> None:
    """That there is a listener makes every request a stream."""
    HEARD.extend([type(event).__name__ async for event in events])


async def main(api: str, how: str) -> None:
    agent = Agent(MODELS[api]("tiny"), instructions="Be brief.", tools=[get_weather])
    handler = listened if how == "streamed" else None
    run = await agent.run("Weather?", event_stream_handler=handler)
    assert ("PartDeltaEvent" in HEARD) == (how == "streamed")
    usage = run.usage() if callable(run.usage) else run.usage
    told = [usage.requests, usage.input_tokens, usage.output_tokens]
    sys.stdout.write(json.dumps({"answer": run.output, "ran": RAN, "usage": told}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
