"""Claude Code itself: a whole exchange with tools, and the same session gone on with."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ModelSettings, Settings
from tests.clients import npm_client, output_of
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_models import REASONING, write_model

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


@pytest.fixture(scope="session")
async def claude() -> Path:
    installed = await asyncio.to_thread(npm_client, "claude-code")
    [binary] = (installed / "@anthropic-ai").glob("claude-code-*-*/claude")
    return binary


@pytest.fixture
async def gateway(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that serves its model under any name, with room for the agent's long prompt."""
    model = write_model(tmp_path / "model", REASONING, max_position_embeddings=400_000)
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, model, engine.url, tmp_path)
        values["gateway"] = values["gateway"].model_copy(update={"max_body_bytes": 8_000_000})
        values["model"] = ModelSettings(path=model, name="tiny", aliases=("*",))
        async with running_gateway(Settings(**values), keys) as running:
            served = Gateway(url=running.url, keys=keys, services=running.services, engine=engine)
            engine.script = lambda body: scripted(served, body)
            yield served


def scripted(gateway: Gateway, body: dict[str, Any]) -> Sequence[int]:
    """Calls at first, an end once there are results; calls beside the main line get a title."""
    tokenizer = gateway.services.tokenizer
    prompt = tokenizer.decode(body["input_ids"])
    if '"name": "Bash"' not in prompt:
        text = '{"title": "Files"}'
    elif "<tool_response>" in prompt or "A subtask." in prompt:
        text = DONE
    else:
        text = SUBAGENT if "Use an agent." in prompt else CALLS
    return [*tokenizer.encode(text), tokenizer.facts.stop_token_ids[0]]


@pytest.fixture
def ask(gateway: Gateway, claude: Path, tmp_path: Path) -> Ask:
    """Run the agent once without a terminal; what it reports at its end."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": gateway.keys.agent,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    shared = ["--output-format", "json", "--allowedTools", "Bash(echo:*)"]

    async def run(*arguments: str) -> dict[str, Any]:
        command = [str(claude), "-p", *arguments, *shared]
        said = json.loads(await output_of(command, environ=environ, directory=work))
        value: dict[str, Any] = said[-1] if isinstance(said, list) else said
        return value

    return run


TURNS = (
    "SELECT t.*, s.external_id FROM turns t JOIN sessions s ON s.id = t.session_id ORDER BY t.id"
)


async def test_a_session_is_captured_as_one_line(gateway: Gateway, ask: Ask) -> None:
    # The agent waits and asks again, as it does of the API that it was made for.
    gateway.engine.faults.refuse_once.append((503, "The request queue is full."))
    first = await ask("Which files are there?")
    again = await ask("And now?", "--continue")
    for seen, turns in ((first, 3), (again, 1)):
        assert (seen["result"], seen["is_error"]) == ("All is well.", False)
        assert seen["num_turns"] == turns
    assert first["session_id"] == again["session_id"]

    main = [turn for turn in await gateway.rows(TURNS) if turn["kind"] == "main"]
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


async def test_calls_beside_the_line_are_told_apart(gateway: Gateway, ask: Ask) -> None:
    await ask("Which files are there?")
    await ask("/compact", "--continue")
    await ask("And now?", "--continue")
    await ask("Use an agent.")
    turns = await gateway.rows(TURNS)
    kinds = {turn["kind_rule"]: turn["kind"] for turn in turns if turn["kind"] == "side"}
    assert kinds == {"compaction": "side", "subagent": "side"}
    [worker] = [turn for turn in turns if turn["kind_rule"] == "subagent"]
    caller, _, part = worker["external_id"].partition("/")
    assert part
    assert caller in {turn["external_id"] for turn in turns if turn["kind"] == "main"}
    compacted = [turn for turn in turns if turn["branch_reason"] == "compacted"]
    assert [(turn["kind"], turn["parent_id"]) for turn in compacted] == [("main", None)]
    said = await gateway.rows("SELECT messages FROM next_states")
    spoken = [
        message["content"]
        for state in said
        for message in state["messages"]
        if message["role"] == "user"
    ]
    assert not any("detailed summary of the conversation" in str(words) for words in spoken)
