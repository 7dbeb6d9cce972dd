"""The one thread that heavy work runs on, so that heartbeats, drains and wake-ups go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Compute:
    """Runs blocking work, one piece at a time, whatever the number of lineages."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Work that waits is dropped; what runs is waited for."""
        self._executor.shutdown(cancel_futures=True)
