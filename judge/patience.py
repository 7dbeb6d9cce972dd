"""Waiting for what is away: Postgres, or what a judge asks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import StoreUnavailable
from gateway.telemetry import get_logger

T = TypeVar("T")

log = get_logger(__name__)

LONGEST_WAIT_S = 60.0


async def patiently(
    action: Callable[[], Awaitable[T]],
    stop: asyncio.Event | None = None,
    *,
    first_s: float = 0.2,
    most_s: float = 5.0,
) -> T | None:
    """Do `action`, again and again while Postgres is away; None where `stop` comes first.

    The waits double from `first_s` to `most_s`, a little different in each replica, so that those
    that lost the same server do not all come back at once.
    """
    stop = stop or asyncio.Event()
    wait_s = first_s
    while not stop.is_set():
        try:
            return await action()
        except StoreUnavailable as error:
            log.warning("store_unavailable", error=error.message, retry_s=round(wait_s, 1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s * (0.5 + random.random() / 2)):  # noqa: S311
                await stop.wait()
        wait_s = min(2 * wait_s, most_s)
    return None


def patience(away_s: float) -> float:
    """How long to wait for what has been away for `away_s` seconds: half as long again, at most.

    So nobody asks much more often than it is worth, and what is back is noticed in time.
    """
    return min(away_s / 2, LONGEST_WAIT_S)
