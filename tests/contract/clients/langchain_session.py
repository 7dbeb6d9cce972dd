"""Runs in an environment that holds LangChain: a model with a tool bound, called until it is done.

The first argument is the API, `chat`, `responses` or `messages`, the second `plain` or `streamed`.
A model that says anything is FORCED to call, and bounded in what it says then.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

FORCED = "FORCED" in os.environ
City: Any = Literal["Oslo", "Bergen"] if FORCED else str
CALL: Any = {"tool_choice": "get_weather", "parallel_tool_calls": False}
RAN: list[str] = []


@tool
def get_weather(city: City) -> str:
    """Tells the weather of a city."""
    RAN.append(city)
    return f"{city}: 21"


def model(api: str, most: int | None) -> Any:
    if api == "messages":
        url = os.environ["ANTHROPIC_BASE_URL"]
        return ChatAnthropic(model="tiny", base_url=url, max_tokens=most or 400, stop=None)
    bound: Any = {} if most is None else {"max_tokens": most}
    return ChatOpenAI(
        model="tiny", use_responses_api=api == "responses", stream_usage=True, **bound
    )


def main(api: str, how: str) -> None:
    bound = model(api, 900 if FORCED else None).bind_tools(
        [get_weather], **(CALL if FORCED else {})
    )
    history: list[Any] = [SystemMessage("Be brief."), HumanMessage("Weather?")]
    usage = [0, 0, 0]
    while True:
        if how == "streamed":
            reply = None
            for piece in bound.stream(history):
                reply = piece if reply is None else reply + piece
        else:
            reply = bound.invoke(history)
        history.append(reply)
        told = reply.usage_metadata
        usage = [usage[0] + 1, usage[1] + told["input_tokens"], usage[2] + told["output_tokens"]]
        if not reply.tool_calls:
            break
        history += [get_weather.invoke(call) for call in reply.tool_calls]
        if FORCED:
            bound = model(api, 24).bind_tools([get_weather])
    sys.stdout.write(json.dumps({"answer": reply.text, "ran": RAN, "usage": usage}))


if __name__ == "__main__":
    main(*sys.argv[1:])
