"""The official clients: what each sends in an exchange with tools, written down to be kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients import client_python, npm_client, run_client, run_node
from tests.exchanges import save
from tests.fixtures_clients import Served
from tests.reasoning import CALLS, DONE

#: Client, what it does, and how many replies that takes.
DOINGS = (
    ("openai", "chat", 2),
    ("openai", "chat_streamed", 2),
    ("openai", "responses", 3),
    ("openai", "responses_streamed", 2),
    ("node", "chat", 2),
    ("node", "runner", 2),
    ("node", "responses", 2),
    ("anthropic", "plain", 2),
    ("anthropic", "streamed", 2),
    ("anthropic", "runner", 2),
)


def answer(prompt: str) -> str:
    return DONE if "Zürich: 21" in prompt else CALLS


@pytest.mark.parametrize(("client", "doing", "replies"), DOINGS)
async def test_an_exchange_with_tools(
    served: Served, client: str, doing: str, replies: int
) -> None:
    served.answers(answer)
    environ = {
        "OPENAI_BASE_URL": f"{served.recorder.url}/v1",
        "OPENAI_API_KEY": served.keys.agent,
        "ANTHROPIC_BASE_URL": served.recorder.url,
        "ANTHROPIC_API_KEY": served.keys.agent,
        **served.recorder.environ,
    }
    if client == "node":
        modules = await asyncio.to_thread(npm_client, "openai-node")
        await run_node(modules, "openai_node.mjs", doing, **environ)
    else:
        python = await asyncio.to_thread(client_python, client)
        await run_client(python, f"{client}_session.py", doing, **environ)
    await save(served, served.recorder, f"{client}-{doing}", {served.keys.agent: "KEY"})
    turns = await served.turns()
    assert len(turns) == replies
    assert {turn["session_id"] for turn in turns} == {turns[0]["session_id"]}
    parents = [turn["parent_id"] for turn in turns]
    assert parents == [None, *(turn["id"] for turn in turns[:-1])]
    assert [turn["branch_reason"] for turn in turns][:2] == [None, None]
    assert not any(turn["stream_mismatch"] for turn in turns)
    results = [message["content"] for message in turns[0]["followed_by"]]
    assert results == ["Zürich: 21", "Oslo: 21"]
