"""Frameworks over the real engine: a call, its result, and a reply, in each API that they speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.frameworks import FRAMEWORKS, forced_exchange
from tests.witnessed import Witnessed, witnessed

pytestmark = pytest.mark.sglang


@pytest.fixture
async def gateway(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> AsyncIterator[Witnessed]:
    async with witnessed(database_url, tiny_model, sglang_url, tmp_path) as running:
        yield running


@pytest.mark.parametrize("how", ["plain", "streamed"])
@pytest.mark.parametrize(
    ("name", "api"), [(name, api) for name, (_, apis) in FRAMEWORKS.items() for api in apis]
)
async def test_a_call_and_what_follows_it(
    gateway: Witnessed, name: str, api: str, how: str
) -> None:
    await forced_exchange(gateway, name, api, how)
