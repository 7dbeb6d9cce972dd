"""Runs in an environment that holds smolagents: an agent that calls tools, its own end among them.

The first argument is always `chat`, the second `plain` or `streamed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import smolagents

RAN: list[str] = []


@smolagents.tool
def get_weather(city: str) -> str:
    """Tells the weather of a city.

    Args:
        city: its name
    """
    RAN.append(city)
    return f"{city}: 21"


def main(_: str, how: str) -> dict[str, Any]:
    model = smolagents.OpenAIModel(
        model_id="tiny",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
    )
    agent = smolagents.ToolCallingAgent(
        tools=[get_weather],
        model=model,
        verbosity_level=-1,
        stream_outputs=how == "streamed",
        return_full_result=True,
        max_steps=4,
        max_tool_threads=1,
    )
    run = agent.run("Weather?")
    told = run.token_usage
    usage = [len(run.steps) - 1, told.input_tokens, told.output_tokens]
    return {"answer": run.output, "ran": RAN, "usage": usage}


if __name__ == "__main__":
    # What a library prints beside is not what was seen.
    with contextlib.redirect_stdout(sys.stderr):
        seen = main(*sys.argv[1:])
    sys.stdout.write(json.dumps(seen))
