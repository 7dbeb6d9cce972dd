"""Rank 0 and those that follow it: what is told, what is looked for, and how a crew ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError, RankLost, TrainerError
from tests.two_ranks import Ranks, two_ranks
from trainer.config import TrainerConfig, TrainerSettings
from trainer.crew import Crew, LeadingLearner, agree
from trainer.distributed import Place, World
from trainer.service import run


class Heard(World):
    """One process, which keeps what it would have told others."""

    def __init__(self) -> None:
        super().__init__(Place())
        self.words: list[str] = []

    def share(self, value: Any = None) -> Any:
        self.words.append(value.word)
        return value


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with two_ranks() as ranks:
        yield ranks


async def test_ranks_are_looked_for_while_postgres_is_away(tmp_path: Path) -> None:
    """Or they would count rank 0 as lost before it has anything to tell."""
    world, stop = Heard(), asyncio.Event()
    settings = TrainerSettings(
        database={"url": "postgresql://x@127.0.0.1:1/none", "spool": tmp_path},
        trainer={"poll_s": 0.01},
    )
    running = asyncio.create_task(run(settings, stop, (), Crew(world, beat_s=0.01)))
    async with asyncio.timeout(60):
        while "beat" not in world.words:
            await asyncio.sleep(0.01)
        stop.set()
        await running
    assert world.words[-1] == "end"
    assert {*world.words} == {"beat", "end"}


async def test_a_rank_that_is_lost_before_postgres_answers_ends_the_job(tmp_path: Path) -> None:
    class Gone(Heard):
        def barrier(self) -> None:
            self._broken = True
            raise RankLost("rank 1 does not answer")

    world = Gone()
    settings = TrainerSettings(
        database={"url": "postgresql://x@127.0.0.1:1/none", "spool": tmp_path},
        trainer={"poll_s": 0.01},
    )
    async with asyncio.timeout(60):
        with pytest.raises(RankLost, match="rank 1"):
            await run(settings, asyncio.Event(), (), Crew(world, beat_s=0.01))
    # Nobody waits for a word at the end.
    assert world.words == ["beat"]


def test_a_rank_that_an_order_has_lost_is_not_looked_for() -> None:
    """What it would raise would cut off the giving back of samples."""
    world = Heard()
    crew = Crew(world, beat_s=1.0)
    crew._beat()
    assert world.words == ["beat"]
    world._broken = True
    crew._beat()
    assert world.words == ["beat"]


def test_the_weights_of_several_ranks_are_no_order() -> None:
    """Rank 0 alone would wait for the others until they count as lost."""
    leading = LeadingLearner.__new__(LeadingLearner)
    with pytest.raises(TrainerError, match="by disk"):
        leading.weights()


def job_settings(world: World, changes: dict[str, Any]) -> str:
    mine = changes if world.rank else {}
    try:
        agree(world, TrainerConfig.model_validate(mine))
    except ConfigError as error:
        return error.message
    return ""


def test_other_settings_on_a_rank_are_refused_on_all(ranks: Ranks) -> None:
    said = "trainer.optimizer of rank 1 is not that of rank 0"
    assert ranks(job_settings, {"optimizer": {"lr": 1e-6}}) == [said, said]
    assert ranks(job_settings, {"threads": 4, "metrics_port": 9}) == ["", ""]


def job_unforeseen(world: World) -> bool:
    with pytest.raises(KeyError), world.together():
        raise KeyError("unforeseen")
    return world.broken


def test_nobody_is_told_anything_after_what_nobody_foresaw(ranks: Ranks) -> None:
    """The last of this module: its ranks are out of step then."""
    assert ranks(job_unforeseen) == [True, True]
