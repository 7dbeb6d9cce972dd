"""Runs in an environment that holds LangChain: a model with a tool bound, called until it is done.

The first argument is the API, `chat`, `responses` or `messages`, the second `plain` or `streamed`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

RAN: list[str] = []


@tool
def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    RAN.append(city)
    return f"{city}: 21"


def model(api: str) -> Any:
    if api == "messages":
        return ChatAnthropic(
            model="tiny", base_url=os.environ["ANTHROPIC_BASE_URL"], max_tokens=400, stop=None
        )
    return ChatOpenAI(model="tiny", use_responses_api=api == "responses", stream_usage=True)


def main(api: str, how: str) -> None:
    bound = model(api).bind_tools([get_weather])
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
    sys.stdout.write(json.dumps({"answer": reply.text, "ran": RAN, "usage": usage}))


if __name__ == "__main__":
    main(*sys.argv[1:])
