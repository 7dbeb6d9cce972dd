"""Runs in an environment that holds smolagents: an agent that calls tools, its own end among them.

The first argument is always `chat`, the second `plain` or `streamed`. A model that says anything is
FORCED to call each of its tools with one of few choices.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import smolagents

FORCED = "FORCED" in os.environ
RAN: list[str] = []


def named(tool: str) -> Any:
    return {"type": "function", "function": {"name": tool}}


@smolagents.tool
def get_weather(city: str) -> str:
    """Tells the weather of a city.

    Args:
        city: its name
    """
    RAN.append(city)
    return f"{city}: 21"


def then_answer(_: Any, agent: Any) -> None:
    agent.model.kwargs["tool_choice"] = named("final_answer")


def main(_: str, how: str) -> dict[str, Any]:
    model = smolagents.OpenAIModel(
        model_id="tiny",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        **({"parallel_tool_calls": False, "max_tokens": 900} if FORCED else {}),
    )
    agent = smolagents.ToolCallingAgent(
        tools=[get_weather],
        model=model,
        verbosity_level=-1,
        stream_outputs=how == "streamed",
        return_full_result=True,
        max_steps=4,
        max_tool_threads=1,
        step_callbacks=[then_answer] if FORCED else None,
    )
    if FORCED:
        model.kwargs["tool_choice"] = named("get_weather")
        agent.tools["get_weather"].inputs["city"]["enum"] = ["Oslo", "Bergen"]
        agent.tools["final_answer"].inputs["answer"] |= {
            "type": "string",
            "enum": ["Warm.", "Cold."],
        }
        # Its own instructions are longer than what a tiny model reads.
        agent.prompt_templates["system_prompt"] = "Be brief."
    run = agent.run("Weather?")
    told = run.token_usage
    usage = [len(run.steps) - 1, told.input_tokens, told.output_tokens]
    return {"answer": run.output, "ran": RAN, "usage": usage}


if __name__ == "__main__":
    # What a library prints beside is not what was seen.
    with contextlib.redirect_stdout(sys.stderr):
        seen = main(*sys.argv[1:])
    sys.stdout.write(json.dumps(seen))
