"""Clients of the proof reach a gateway through a recorder, and nothing else.

With this directory among what pytest is given, all of the run is a proof: its properties are tried
on more examples, and what has passed is not run again (see `progress`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fixtures_clients import Served, serving
from tests.proof.wire.progress import RECORDS, ROOT, Progress, digest_of

#: Twenty-five times what a test tries, and the same ones each time.
settings.register_profile("proof", parent=settings.get_profile("same"), max_examples=2_500)
settings.load_profile("proof")


def pytest_configure(config: pytest.Config) -> None:
    examples = settings.default.max_examples
    progress = Progress(RECORDS / f"{digest_of(ROOT)}-{examples}")
    config.pluginmanager.register(progress, "progress of the proof")


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(database_url, tmp_path) as gateway:
        yield gateway
    assert gateway.recorder.outside == []
