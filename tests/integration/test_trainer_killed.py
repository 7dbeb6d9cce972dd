"""One death of a trainer in the middle of a swap; `make proof-swap` has it die at each step."""

from __future__ import annotations

from pathlib import Path

from tests.swap_deaths import dies_and_is_followed
from tests.whole_weights import town


async def test_a_trainer_killed_in_mid_swap_leaves_one_serving_version_and_is_followed(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    """The engine is paused, with weights that nobody has proved."""
    async with town(database_url, tiny_model, tmp_path) as world:
        await dies_and_is_followed(world, database_url, tmp_path, "replaced")
