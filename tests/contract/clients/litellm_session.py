"""Runs in an environment that holds LiteLLM's SDK: completions with a tool, called until done.

The first argument is the provider, which is the API too: `openai`, `hosted_vllm` or `anthropic`;
the second is `plain` or `streamed`. A model that says anything is FORCED to call, and bounded in
what it says then.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import litellm

FORCED = "FORCED" in os.environ
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
if FORCED:
    SCHEMA = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Bergen"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
CALL: Any = {
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "parallel_tool_calls": False,
    "max_tokens": 900,
}
SAY: Any = {"tool_choice": "none", "max_tokens": 24}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": SCHEMA,
    },
}


def main(provider: str, how: str) -> dict[str, Any]:
    litellm.telemetry = False
    at: dict[str, Any] = {"model": f"{provider}/tiny", "tools": [TOOL]}
    if provider != "anthropic":
        at |= {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    at |= CALL if FORCED else {}
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
    ]
    ran, usage = [], [0, 0, 0]
    while True:
        if how == "streamed":
            more = {"stream": True, "stream_options": {"include_usage": True}}
            pieces = list(litellm.completion(messages=history, **at, **more))
            reply = litellm.stream_chunk_builder(pieces, messages=history)
        else:
            reply = litellm.completion(messages=history, **at)
        message, told = reply.choices[0].message, reply.usage
        usage = [usage[0] + 1, usage[1] + told.prompt_tokens, usage[2] + told.completion_tokens]
        history.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            ran.append(city)
            history.append({"role": "tool", "tool_call_id": call.id, "content": f"{city}: 21"})
        at |= SAY if FORCED else {}
        if FORCED and provider != "anthropic":
            # What it takes for reasoning would be left out of the text.
            at["stop"] = ["<think>"]
    return {"answer": message.content, "ran": ran, "usage": usage}


if __name__ == "__main__":
    # What a library prints beside is not what was seen.
    with contextlib.redirect_stdout(sys.stderr):
        seen = main(*sys.argv[1:])
    sys.stdout.write(json.dumps(seen))
