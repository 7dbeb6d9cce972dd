"""Hundreds of swaps on the real engine under load: no request notices, every span is true."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.swap import measured, ours, started
from bench.swap_bed import Place
from bench.swap_figures import summary
from gateway.config import EngineSettings
from gateway.records import PolicyKind

pytestmark = pytest.mark.sglang

SWAPS = int(os.environ.get("SWAPS", "100"))


@pytest.fixture(scope="module")
async def bed(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Path, list[EngineSettings]]]:
    """Two real servers, and weights to move between."""
    home = tmp_path_factory.mktemp("swap")
    processes, engines = await started(2, home)
    yield home, engines
    for process in processes:
        process.stop()


# Adapters first: whole weights change the base below them.
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [PolicyKind.LORA, PolicyKind.FULL])
async def test_no_request_notices_a_swap(
    bed: tuple[Path, list[EngineSettings]], database_url: str, kind: PolicyKind, count: int
) -> None:
    home, engines = bed
    place = Place(engines[:count], home, database_url)
    found = summary([await measured(place, kind, ours, SWAPS)])
    assert found["swaps"] == SWAPS
    assert found["requests"] >= 8 * SWAPS
    assert (found["failed"], found["truncated"], found["restarted"]) == (0, 0, 0)
    assert found["unstored"] == 0
    # Each of some spans of every version is its own weights' and no others'.
    assert found["spans_checked"] >= SWAPS
    assert found["spans_told_apart"] >= 0.95 * found["spans_checked"]
    assert found["spans_wrong"] == 0
    # Whole weights change in the middle of replies; adapters never do.
    assert (found["spanning"] > 0) is (kind is PolicyKind.FULL)
