"""A session of 100 turns whose prompts have 60 KB: what the store holds of it, printed in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.proof.sessions.growth import grown, roomy_gateway


async def test_a_long_session_costs_its_text_once(
    database_url: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    async with roomy_gateway(database_url, tmp_path) as gateway:
        found = await grown(gateway, 100)
    say(f"\n{found.table()}\n")
    assert sum(found.columns.values()) < 4 * found.text
    assert found.sent > 50 * found.text
