"""Trainers killed by SIGKILL at each step of a swap of whole weights, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.swap_deaths import dies_and_is_followed
from tests.swap_victim import POINTS
from tests.whole_weights import town


@pytest.mark.parametrize("point", POINTS)
async def test_one_definite_version_serves_and_the_next_leader_goes_on(
    database_url: str, tiny_model: Path, tmp_path: Path, point: str
) -> None:
    async with town(database_url, tiny_model, tmp_path) as world:
        await dies_and_is_followed(world, database_url, tmp_path, point)
