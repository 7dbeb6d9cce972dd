"""Clients of the proof reach a gateway through a recorder, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures_clients import Served, serving


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(database_url, tmp_path) as gateway:
        yield gateway
    assert gateway.recorder.outside == []
