"""Frameworks that agents are built with: their programs, and one exchange over the real engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.clients import client_python, run_client
from tests.fixtures_clients import Served
from tests.running import as_stored
from tests.witnessed import Witnessed, checked

#: The program of each, and the APIs that it speaks.
FRAMEWORKS = {
    "openai-agents": ("agents_session.py", ("chat", "responses")),
    "langchain": ("langchain_session.py", ("chat", "responses", "messages")),
    "litellm": ("litellm_session.py", ("openai", "hosted_vllm", "anthropic")),
    "pydantic-ai": ("pydantic_ai_session.py", ("chat", "responses", "messages")),
    "smolagents": ("smolagents_session.py", ("chat",)),
}

#: No telemetry, and no list of prices from the web.
QUIET = {
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HF_HUB_OFFLINE": "1",
}

CITIES = ("Oslo", "Bergen")
ANSWERS = ("Warm.", "Cold.")


async def run_framework(
    where: Served | Witnessed, name: str, api: str, how: str, **environ: str
) -> dict[str, Any]:
    """What the program of a framework saw, `how` being plain or streamed."""
    python = await asyncio.to_thread(client_python, name)
    return await run_client(
        python,
        FRAMEWORKS[name][0],
        api,
        how,
        OPENAI_BASE_URL=f"{where.recorder.url}/v1",
        OPENAI_API_KEY=where.keys.agent,
        ANTHROPIC_BASE_URL=where.recorder.url,
        ANTHROPIC_API_KEY=where.keys.agent,
        **where.recorder.environ,
        **QUIET,
        **environ,
    )


async def forced_exchange(gateway: Witnessed, name: str, api: str, how: str) -> None:
    """A call that the engine's grammar forces, and what a random model says of its result.

    Frameworks ask again where it says nothing, so that the turns are two or more.
    """
    seen = await run_framework(gateway, name, api, how, FORCED="yes")
    turns = await checked(gateway)
    one, two, *_ = turns
    [call] = one["reply"]["tool_calls"]
    city = json.loads(call["function"]["arguments"])["city"]
    assert city in CITIES
    assert (call["function"]["name"], seen["ran"]) == ("get_weather", [city])
    assert (one["finish_reason"], one["untrainable_reason"]) == ("tool_calls", "grammar")
    counts = [sum(turn[count] for turn in turns) for count in ("prompt_len", "completion_len")]
    assert seen["usage"] == [len(turns), *counts]
    assert (one["parent_id"], two["parent_id"]) == (None, one["id"])
    assert {turn["session_id"] for turn in turns} == {one["session_id"]}
    [result] = [message["content"] for message in one["followed_by"]]
    if name == "smolagents":
        # It writes calls and results as text, and ends by a call.
        assert f"{city}: 21" in str(result)
        [last] = turns[-1]["reply"]["tool_calls"]
        assert json.loads(last["function"]["arguments"]) == {"answer": seen["answer"]}
        assert seen["answer"] in ANSWERS
        return
    assert result == f"{city}: 21"
    assert two["branch_reason"] is None
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert as_stored(seen["answer"] or "") == (turns[-1]["reply"]["content"] or "")
    cut = [turn for turn in turns[1:] if turn["finish_reason"] == "length"]
    assert {turn["completion_len"] for turn in cut} <= {24}
