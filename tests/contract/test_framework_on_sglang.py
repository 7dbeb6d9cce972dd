"""One framework over the real engine; `make proof-wire` does the same with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks import forced_exchange
from tests.witnessed import witnessed


@pytest.mark.sglang
async def test_a_call_and_what_follows_it(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> None:
    async with witnessed(database_url, tiny_model, sglang_url, tmp_path) as gateway:
        await forced_exchange(gateway, "openai-agents", "responses", "streamed")
