from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.replay import Wanted, adjusted, moment, summary, wanted
from gateway.errors import ConfigError
from judge.config import JudgeConfig

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", NOW - 90),
        ("5 min", NOW - 300),
        ("2h", NOW - 7200),
        ("1.5h", NOW - 5400),
        ("3d", NOW - 259_200),
        # 2001-09-09T01:46:40Z is 10^9 seconds.
        ("2001-09-09T01:46:40", 1e9),
        ("2001-09-09T03:46:40+02:00", 1e9),
    ],
)
def test_a_moment(text: str, seconds: float) -> None:
    assert moment(text, NOW) == seconds


def test_options_that_cannot_be_read(tmp_path: Path) -> None:
    none = {"limit": 5, "model": None, "guidance": None}
    assert wanted(None, None, **none) is None
    for session, since, message in (
        ("x", None, "'x' is not the id of a session"),
        (None, "soon", "'soon' is neither like 2h nor a date"),
        ("x", "2h", "exclude one another"),
    ):
        with pytest.raises(ConfigError, match=message):
            wanted(session, since, **none)
    with pytest.raises(ConfigError, match="are for --replay"):
        wanted(None, None, limit=5, model="m", guidance=None)
    told = tmp_path / "guidance.txt"
    told.write_text("Brevity counts.")
    found = wanted("0" * 32, None, limit=5, model="m", guidance=told)
    assert found is not None
    assert (found.limit, found.model, found.guidance) == (5, "m", "Brevity counts.")


def test_another_model_and_prompt_change_nothing_else() -> None:
    llm = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "votes": 5}
    ask = Wanted(session=None, since=0.0, limit=1, model="big", guidance="Brevity counts.")
    found = adjusted(JudgeConfig(llm=llm, concurrency=3), ask)
    assert found.llm is not None
    assert (found.llm.model, found.llm.guidance) == ("big", "Brevity counts.")
    assert (found.llm.votes, found.concurrency) == (5, 3)
    with pytest.raises(ConfigError, match="need an LLM judge"):
        adjusted(JudgeConfig(), ask)


def test_the_summary_says_what_moved() -> None:
    found = {
        "turns": 4, "same": 1, "changed": 2, "failed": 1, "from_to": {"1 -> -1": 2},
        "mean_before": 0.5, "mean_now": -0.25, "kappa": None,
    }  # fmt: skip
    assert summary(found) == (
        "4 turns judged again: 1 the same, 2 changed, 1 failed\n"
        "mean score +0.500 before, -0.250 now\n"
        "  1 -> -1: 2"
    )
