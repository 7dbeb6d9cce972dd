"""Storage grows with what is new in a turn, not with all that stands before it."""

from __future__ import annotations

from pathlib import Path

from tests.proof.sessions.growth import PROMPT_BYTES, TOOLS_BYTES, grown, roomy_gateway

TURNS = 100


async def test_a_long_session_costs_its_text_once(database_url: str, tmp_path: Path) -> None:
    async with roomy_gateway(database_url, tmp_path) as gateway:
        found = await grown(gateway, TURNS)
        rows = await gateway.rows("SELECT branch_reason, tools FROM turns ORDER BY id")
    assert found.sent > 50 * found.text > 50 * (PROMPT_BYTES + TOOLS_BYTES)
    said = ("turns.messages", "turns.tools", "turns.reply")
    # What was said stands in the turns once, as JSON; what followed a reply beside it once more.
    assert sum(found.whole[name] for name in said) < 1.1 * found.text
    assert found.whole["next_states.messages"] < 0.5 * found.text
    # Every id once, at four bytes, and a log-probability for each that was sampled.
    ids = found.columns["turns.prompt_ids"] + found.columns["turns.sampled_ids"]
    assert 4 * found.ids <= ids <= 4 * found.ids + 8 * TURNS
    assert found.columns["turns.logprobs"] == found.columns["turns.sampled_ids"]
    assert sum(found.columns.values()) < 4 * found.text
    assert {row["branch_reason"] for row in rows} == {None}
    assert len(rows[0]["tools"]) == 8
    assert {str(row["tools"]) for row in rows[1:]} == {"[{'type': 'as_before'}]"}
