"""Command-line agents over the real engine: their whole prompts, a command, and what it says.

The session is then gone on with. The model is tiny and made to work with agents (see `speaker`);
what is checked is that agent, gateway, engine and Postgres tell the same of what it samples.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ModelSettings, SamplingDefaults, ServerSettings
from tests.clients import output_of
from tests.fixtures_engine import running_sglang
from tests.ports import free_port
from tests.proof.wire.agents import AGENTS, clean
from tests.proof.wire.speaker import CONTEXT, SAID, WORD, make_speaker, speaking_for
from tests.witnessed import checked, witnessed

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_speaker(tmp_path_factory.mktemp("speaker") / "model", [*AGENTS.values()])


@pytest.fixture(scope="module")
async def speaking_url(
    speaker: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    log = tmp_path_factory.mktemp("speaking") / "server.log"
    async with running_sglang(speaker, log, max_total_tokens=2 * CONTEXT) as process:
        yield process.url


@pytest.mark.parametrize("name", AGENTS)
async def test_a_command_and_an_answer(
    name: str, database_url: str, speaker: Path, speaking_url: str, tmp_path: Path
) -> None:
    agent = AGENTS[name]
    model = speaking_for(agent, speaker, tmp_path / "model")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    agent.prepare(home)
    binary = await asyncio.to_thread(agent.installed)
    async with witnessed(
        database_url,
        model,
        speaking_url,
        tmp_path,
        gateway=ServerSettings(port=free_port(), max_body_bytes=8_000_000),
        model=ModelSettings(path=model, name="tiny", aliases=("*",)),
        # Several times what it says: a model that did not end would be cut, and seen.
        sampling=SamplingDefaults(max_tokens=200),
    ) as gateway:
        url, key = gateway.recorder.url, gateway.keys.agent
        environ = clean(home) | gateway.recorder.environ | agent.environ(url, key)
        for question, on in (("Which files are there?", False), ("And now?", True)):
            command = [str(binary), *agent.command(url, question, on)]
            said = await output_of(command, environ=environ, directory=work)
            assert SAID in said.decode()

        turns = await checked(gateway)
    main = [turn for turn in turns if turn["kind"] == "main"]
    assert {turn["kind"] for turn in turns if turn not in main} <= {"side"}
    check_line(main)
    for calling, answering in zip(main[::2], main[1::2], strict=True):
        [call] = calling["reply"]["tool_calls"]
        tool, argument = agent.call
        assert call["function"]["name"] == tool
        assert json.loads(call["function"]["arguments"])[argument] == f"echo {WORD}"
        [result] = [message for message in calling["followed_by"] if message["role"] == "tool"]
        assert WORD in str(result["content"])
        assert answering["reply"]["content"].endswith(SAID)


def check_line(turns: Sequence[Mapping[str, Any]]) -> None:
    """A call and an answer for each of two questions, each turn by the ids of the one before."""
    assert [turn["finish_reason"] for turn in turns] == ["tool_calls", "stop"] * 2
    assert [turn["followed_by_role"] for turn in turns] == ["tool", "user", "tool", None]
    assert [turn["trainable"] for turn in turns] == [True] * 4
    assert {turn["session_id"] for turn in turns} == {turns[0]["session_id"]}
    assert turns[0]["external_id"]
    assert (turns[0]["parent_id"], turns[0]["shared_len"]) == (None, 0)
    for before, turn in pairwise(turns):
        assert (turn["parent_id"], turn["branch_reason"]) == (before["id"], None)
        assert turn["shared_len"] == before["prompt_len"] + before["completion_len"]
