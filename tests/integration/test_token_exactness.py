"""What is stored of sessions is what the real engine was given and said, to the byte.

`make proof-sessions` does the same with 200 sessions of 10 turns.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.sessions.plan import plan
from tests.proof.sessions.stage import proved
from tests.proof.sessions.witness import damages
from tests.tiny_model import IM_END, make_tokenizer

SESSIONS, TURNS = 7, 4


@pytest.mark.sglang
async def test_stored_tokens_are_the_engines(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> None:
    end_id = make_tokenizer().token_to_id(IM_END)
    plans = [plan(number, TURNS, end_id=end_id) for number in range(SESSIONS)]
    found = await proved(database_url, tiny_model, sglang_url, tmp_path, plans)
    assert (found.silent, found.wrong) == ([], [])
    assert len(found.dialects) == 4
    counts = found.counts
    assert counts["turns exact to the byte"] == counts["turns stored"] >= SESSIONS * TURNS
    for seen in (
        "trainable",
        "prompts that extend recorded ids",
        "prompts rendered in full beside a parent",
        "prompts told by the engine itself",
        "turns scored again at temperature 1",
        "turns scored by another implementation",
        "replies compared with what the client read",
    ):
        assert counts[seen] > 0, seen
    assert sum(found.untrainable.values()) == counts["untrainable"] > 0


@pytest.mark.sglang
async def test_what_was_damaged_on_its_way_is_not_trained_on(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> None:
    # Each damage meets two replies at least: 36 requests, every third damaged, six damages.
    plans = [plan(number, 3) for number in range(100, 112)]
    found = await proved(database_url, tiny_model, sglang_url, tmp_path, plans, damaged=True)
    assert (found.silent, found.wrong) == ([], [])
    assert found.counts["damaged turns that say so"] > 0
    assert found.counts["turns exact to the byte"] > 0
    assert {"logprob_mismatch", "ids_mismatch"} & set(found.untrainable)
    assert len(damages()) == 6
