"""Random requests of every route: never a 5xx, and every error in the route's own form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures_gateway import Gateway
from tests.fuzz.gateway import fuzz_gateway, fuzzed

SEED = 20
CASES = 1_000


@pytest.fixture
async def fuzzable(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fuzz_gateway(database_url, tmp_path) as gateway:
        yield gateway


async def test_no_bytes_break_the_gateway(fuzzable: Gateway) -> None:
    tally = await fuzzed(fuzzable, SEED, range(CASES))
    assert not tally.complaints, f"{len(tally.complaints)}\n" + "\n".join(tally.complaints[:8])
    assert tally.cases == CASES
    # A fuzzer whose every request is refused at the first check finds nothing.
    assert tally.statuses[200] > CASES / 8, tally.statuses
