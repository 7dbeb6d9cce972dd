"""Runs in an environment that holds the OpenAI Agents SDK: one agent with one tool.

The first argument is the API, `chat` or `responses`, the second `plain` or `streamed`. A model that
says anything is FORCED to call, and bounded in what it says then.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal

import agents
import openai
from pydantic import BaseModel

FORCED = "FORCED" in os.environ
City: Any = Literal["Oslo", "Bergen"] if FORCED else str
CALL: Any = {"tool_choice": "get_weather", "parallel_tool_calls": False, "max_tokens": 900}
SAY: Any = {"tool_choice": "none"}
RAN: list[str] = []


class Answer(BaseModel):
    """A response that is cut is an error here, and within a form no model goes on for ever."""

    answer: Literal["Warm.", "Cold."]


class Then(agents.AgentHooks[Any]):
    """Once a tool has been run, words are asked for."""

    async def on_tool_end(self, context: Any, agent: Any, *_: Any) -> None:
        if FORCED:
            most = 24 if agent.output_type is None else 900
            agent.model_settings = agents.ModelSettings(include_usage=True, max_tokens=most, **SAY)


@agents.function_tool
def get_weather(city: City) -> str:
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
            model_settings=agents.ModelSettings(include_usage=True, **(CALL if FORCED else {})),
            hooks=Then(),
            output_type=Answer if FORCED and api == "responses" else None,
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
        "answer": agents.ItemHelpers.text_message_outputs(run.new_items)
        if FORCED
        else run.final_output,
        "ran": RAN,
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens],
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
