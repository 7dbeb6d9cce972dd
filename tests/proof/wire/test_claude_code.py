"""Claude Code itself: a whole exchange with tools, and the same session gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import output_of
from tests.fixtures_clients import Served
from tests.proof.wire.agents import AGENTS, clean

Ask = Callable[..., Awaitable[dict[str, Any]]]

CALLS = (
    "<think>\nHm.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo öne"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo two"}}\n</tool_call>'
)
SUBAGENT = (
    '<tool_call>\n{"name": "Agent", "arguments": {"description": "do it", "prompt": "A subtask.",'
    ' "subagent_type": "general-purpose"}}\n</tool_call>'
)
DONE = "<think>\nDone.\n</think>\n\nAll is well."


def answer(prompt: str) -> str:
    """Calls at first, an end once there are results; calls beside the main line get a title."""
    if '"name": "Bash"' not in prompt:
        return '{"title": "Files"}'
    if "<tool_response>" in prompt or "A subtask." in prompt:
        return DONE
    return SUBAGENT if "Use an agent." in prompt else CALLS


@pytest.fixture
async def ask(served: Served, tmp_path: Path) -> Ask:
    """Run the agent once without a terminal; what it reports at its end."""
    served.answers(answer)
    agent = AGENTS["claude-code"]
    binary = await asyncio.to_thread(agent.installed)
    url, key = served.recorder.url, served.keys.agent
    environ = clean(tmp_path / "home") | served.recorder.environ | agent.environ(url, key)
    work = tmp_path / "work"
    work.mkdir()
    shared = ["--output-format", "json", "--allowedTools", "Bash(echo:*)"]

    async def run(*arguments: str) -> dict[str, Any]:
        command = [str(binary), "-p", *arguments, *shared]
        said = json.loads(await output_of(command, environ=environ, directory=work))
        value: dict[str, Any] = said[-1] if isinstance(said, list) else said
        return value

    return run


async def test_a_session_is_captured_as_one_line(served: Served, ask: Ask) -> None:
    # The agent waits and asks again, as it does of the API that it was made for.
    served.engine.faults.refuse_once.append((503, "The request queue is full."))
    first = await ask("Which files are there?")
    again = await ask("And now?", "--continue")
    for seen, turns in ((first, 3), (again, 1)):
        assert (seen["result"], seen["is_error"]) == ("All is well.", False)
        assert seen["num_turns"] == turns
    assert first["session_id"] == again["session_id"]

    main = [turn for turn in await served.turns() if turn["kind"] == "main"]
    assert [turn["parent_id"] for turn in main] == [None, main[0]["id"], main[1]["id"]]
    assert {turn["external_id"] for turn in main} == {first["session_id"]}
    assert [turn["stream_mismatch"] for turn in main] == [False] * 3
    assert main[1]["branch_reason"] is None
    assert main[1]["shared_len"] == main[0]["prompt_len"] + main[0]["completion_len"]
    results = [message for message in main[1]["messages"] if message["role"] == "tool"]
    assert [result["content"] for result in results] == ["öne", "two"]
    told = first["usage"]
    assert told["output_tokens"] == main[0]["completion_len"] + main[1]["completion_len"]
    assert told["input_tokens"] + told["cache_read_input_tokens"] == (
        main[0]["prompt_len"] + main[1]["prompt_len"]
    )


async def test_calls_beside_the_line_are_told_apart(served: Served, ask: Ask) -> None:
    await ask("Which files are there?")
    await ask("/compact", "--continue")
    await ask("And now?", "--continue")
    await ask("Use an agent.")
    turns = await served.turns()
    kinds = {turn["kind_rule"]: turn["kind"] for turn in turns if turn["kind"] == "side"}
    assert kinds == {"compaction": "side", "subagent": "side"}
    [worker] = [turn for turn in turns if turn["kind_rule"] == "subagent"]
    caller, _, part = worker["external_id"].partition("/")
    assert part
    assert caller in {turn["external_id"] for turn in turns if turn["kind"] == "main"}
    compacted = [turn for turn in turns if turn["branch_reason"] == "compacted"]
    assert [(turn["kind"], turn["parent_id"]) for turn in compacted] == [("main", None)]
    said = await served.rows("SELECT messages FROM next_states")
    spoken = [
        message["content"]
        for state in said
        for message in state["messages"]
        if message["role"] == "user"
    ]
    assert not any("detailed summary of the conversation" in str(words) for words in spoken)
