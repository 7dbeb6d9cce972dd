"""Command-line agents as they are installed: a task with tools, and the session gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.clients import output_of
from tests.exchanges import save
from tests.fixtures_clients import Served
from tests.proof.wire.agents import AGENTS, Agent, clean
from tests.reasoning import DONE

WORDS = ("öne", "two")


def calls(agent: Agent) -> str:
    """What the model says first: two commands for the agent to run."""
    name, argument = agent.call
    told = [
        json.dumps(
            {"name": name, "arguments": {argument: f"echo {word}", **agent.extra}},
            ensure_ascii=False,
        )
        for word in WORDS
    ]
    written = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in told)
    return f"<think>\nHm.\n</think>\n\nLet me look.\n{written}"


@pytest.mark.parametrize("name", AGENTS)
async def test_a_task_and_its_session(served: Served, name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]

    def answer(prompt: str) -> str:
        if f'"name": "{agent.call[0]}"' not in prompt:
            return '{"title": "Files"}'
        return DONE if "<tool_response>" in prompt else calls(agent)

    served.answers(answer)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    agent.prepare(home)
    binary = await asyncio.to_thread(agent.installed)
    url, key = served.recorder.url, served.keys.agent
    environ = clean(home) | served.recorder.environ | agent.environ(url, key)
    for question, on in (("Which files are there?", False), ("And now?", True)):
        command = [str(binary), *agent.command(url, question, on)]
        said = await output_of(command, environ=environ, directory=work)
        assert "Warm." in said.decode()
    await save(
        served,
        served.recorder,
        name,
        {key: "KEY", str(work): "/home/user/project", str(home): "/home/user"},
    )

    rows = await served.turns()
    main = [row for row in rows if row["kind"] == "main"]
    assert [row["parent_id"] for row in main] == [None, main[0]["id"], main[1]["id"]]
    assert len({row["session_id"] for row in main}) == 1
    assert main[0]["external_id"]
    assert {row["kind"] for row in rows if row not in main} <= {"side"}
    assert [row["stream_mismatch"] for row in rows] == [False] * len(rows)
    # Results as a command gives them, some with words of the agent about it.
    results = [m for m in main[0]["followed_by"] if m["role"] == "tool"]
    assert [word in str(m["content"]) for word, m in zip(WORDS, results, strict=True)] == [True] * 2
    assert main[0]["followed_by_role"] == "tool"
    assert main[1]["followed_by_role"] == "user"
    # The template leaves out old reasoning as soon as the user speaks again, and only then.
    reasons = [row["branch_reason"] for row in main[1:]]
    assert reasons == [None, "template_dropped_reasoning"]
    assert main[1]["shared_len"] == main[0]["prompt_len"] + main[0]["completion_len"]
