"""The guide's programs of every framework, each in an environment of its own."""

from __future__ import annotations

import pytest

from tests.docs import AT_HAND, Block, blocks
from tests.fixtures_docs import Ran, run_block

__all__ = ["run_block"]


@pytest.mark.parametrize(
    "block", [one for one in blocks("python") if one.tag not in AT_HAND], ids=str
)
async def test_a_program_runs_as_it_stands(block: Block, run_block: Ran) -> None:
    code, said = await run_block(block)
    assert code == 0, said
    assert said.strip()
