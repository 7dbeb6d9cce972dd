"""The end of a task that runs beside."""

from __future__ import annotations

import asyncio


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it is over. Raises what it raised, unless it was cancelled.

    Who is cancelled meanwhile hears of it, which awaiting the task itself would not tell apart.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
