"""Runs in an environment that holds the OpenAI Agents SDK: one agent with one tool.

The first argument is the API, `chat` or `responses`, the second `plain` or `streamed`.
"""

from __future__ import annotations

import asyncio
import json
import sys

import agents
import openai

RAN: list[str] = []


@agents.function_tool
def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    RAN.append(city)
    return f"{city}: 21"


async def main(api: str, how: str) -> None:
    agents.set_tracing_disabled(disabled=True)
    async with openai.AsyncOpenAI() as client:
        kinds = {
            "chat": agents.OpenAIChatCompletionsModel,
            "responses": agents.OpenAIResponsesModel,
        }
        agent = agents.Agent(
            name="weather",
            instructions="Be brief.",
            tools=[get_weather],
            model_settings=agents.ModelSettings(include_usage=True),
            model=kinds[api](model="tiny", openai_client=client),
        )
        if how == "streamed":
            run = agents.Runner.run_streamed(agent, "Weather?")
            events = [event.type async for event in run.stream_events()]
            assert "raw_response_event" in events
        else:
            run = await agents.Runner.run(agent, "Weather?")
        usage = run.context_wrapper.usage
    seen = {
        "answer": run.final_output,
        "ran": RAN,
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens],
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
