"""100,000 random requests: never a 5xx, every error in its dialect's form, every turn stored.

A block that was sent once counts until the code or the fuzzer changes, so an interrupted proof goes
on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures_gateway import Gateway
from tests.fuzz.gateway import fuzz_gateway, fuzzed

SEED = 2026
BLOCKS, BLOCK = 50, 2_000
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def done() -> Path:
    """The directory in which every block that has passed leaves a file."""
    found = hashlib.sha256(f"{SEED} {BLOCK}".encode())
    for part in ("gateway", "tests/fuzz"):
        for path in sorted((ROOT / part).rglob("*.py")):
            found.update(path.read_bytes())
    directory = ROOT / "build" / "proof" / f"fuzz-{found.hexdigest()[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture
async def fuzzable(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fuzz_gateway(database_url, tmp_path) as gateway:
        yield gateway


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_a_block_of_random_requests(fuzzable: Gateway, done: Path, block: int) -> None:
    passed = done / str(block)
    if not passed.exists():
        tally = await fuzzed(fuzzable, SEED, range(block * BLOCK, (block + 1) * BLOCK))
        assert not tally.complaints, "\n".join(tally.complaints[:8])
        assert tally.cases == BLOCK
        assert tally.statuses[200] > BLOCK / 8, tally.statuses
        passed.write_text(f"{tally.statuses}\n")
    assert passed.read_text()
