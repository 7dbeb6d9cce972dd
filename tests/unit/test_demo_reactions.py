"""The judge reads the users' reactions by its ordinary rules; nobody tells it about them."""

from __future__ import annotations

import pytest

from gateway.demo.users import CONTENT, IMPATIENT
from gateway.records import FinishReason
from judge.evaluate import RuleJudge, evaluate
from judge.verdicts import Evidence


async def judged(reaction: str, finish: FinishReason) -> float | None:
    evidence = Evidence(
        request=({"role": "user", "content": "Why do cats purr?"},),
        reply={"role": "assistant", "content": "They purr to calm themselves."},
        next_state=({"role": "user", "content": reaction},),
        feedback=(),
        finish_reason=finish,
    )
    return (await evaluate([RuleJudge()], evidence)).score


@pytest.mark.parametrize("reaction", CONTENT)
async def test_contentment_is_read_as_such(reaction: str) -> None:
    assert await judged(reaction, FinishReason.STOP) == 1.0


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("reaction", IMPATIENT)
async def test_impatience_is_read_as_such(reaction: str, finish: FinishReason) -> None:
    assert await judged(reaction, finish) == -1.0
