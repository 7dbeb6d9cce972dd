"""What real clients said to a running gateway, said again: the same replies, the same places.

The clients themselves are run by `make proof-wire`, which writes these exchanges anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.exchanges import EXCHANGES, load, replay
from tests.fixtures_clients import Served, serving

#: For each request its session, the request that it continues, its kind, and who spoke next.
TASK = ("A - main -", "A 1 main tool")
#: The same where the first request was no turn: tokens to count, or a thread that is refused.
LATER = ("A - main -", "A 2 main tool")
AGENT = (*TASK, "A 2 main user")
TITLED = ("A - side -", "A - main -", "A 2 main tool", "A 3 main user")
PLACES = {
    "anthropic-plain": LATER,
    "anthropic-runner": LATER,
    "anthropic-streamed": TASK,
    "claude-code": AGENT,
    "codex": AGENT,
    "langchain-chat-streamed": TASK,
    "langchain-messages-streamed": TASK,
    "langchain-responses-streamed": TASK,
    "litellm-anthropic-streamed": TASK,
    "litellm-hosted_vllm-plain": TASK,
    "litellm-openai-streamed": TASK,
    "node-chat": TASK,
    "node-responses": TASK,
    "node-runner": TASK,
    "openai-agents-chat-streamed": TASK,
    "openai-agents-responses-streamed": TASK,
    "openai-chat": TASK,
    "openai-chat_streamed": TASK,
    "openai-responses": AGENT,
    "openai-responses_streamed": TASK,
    "opencode-chat": TITLED,
    "opencode-responses": TITLED,
    "pydantic-ai-chat-streamed": TASK,
    "pydantic-ai-messages-streamed": TASK,
    "pydantic-ai-responses-streamed": TASK,
    # It writes calls and results as text, each as what a user or the model says.
    "smolagents-chat-streamed": ("A - main -", "A 1 main user"),
}
AS_TEXT = {"smolagents-chat-streamed"}


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(database_url, tmp_path) as gateway:
        yield gateway


def test_every_exchange_is_replayed() -> None:
    assert {path.stem for path in EXCHANGES.glob("*.json")} == set(PLACES)


async def test_every_request_finds_its_place(served: Served) -> None:
    """One after another under one key, so that no two clients are taken for one either."""
    sessions: set[UUID] = set()
    for name, expected in PLACES.items():
        turns = await replay(served, load(name))
        rows = {row["id"]: row for row in await served.turns() if row["id"] in turns}
        assert places(rows, turns) == expected, name
        [session] = {row["session_id"] for row in rows.values()}
        assert session not in sessions, name
        sessions.add(session)
        assert not any(row["stream_mismatch"] for row in rows.values()), name
        check_results(rows, as_text=name in AS_TEXT)


def check_results(rows: Mapping[UUID, Mapping[str, Any]], *, as_text: bool) -> None:
    """What two tools returned is the next state of the call, and extends its recorded ids."""
    continued = [row for row in rows.values() if row["followed_by_role"] == "tool"]
    assert bool(continued) != as_text
    for before in continued:
        assert len([m for m in before["followed_by"] if m["role"] == "tool"]) == 2
        [after] = [row for row in rows.values() if row["parent_id"] == before["id"]]
        assert after["branch_reason"] is None
        assert after["shared_len"] == before["prompt_len"] + before["completion_len"]


def places(rows: Mapping[UUID, Mapping[str, Any]], turns: Sequence[UUID | None]) -> tuple[str, ...]:
    """The places of turns in the words of `PLACES`."""
    names: dict[UUID, str] = {}
    found = []
    for turn_id in turns:
        if turn_id is None:
            continue
        row = rows[turn_id]
        session = names.setdefault(row["session_id"], chr(ord("A") + len(names)))
        parent = row["parent_id"]
        number = turns.index(parent) + 1 if parent else "-"
        role = rows[parent]["followed_by_role"] if parent else "-"
        found.append(f"{session} {number} {row['kind']} {role}")
    return tuple(found)
