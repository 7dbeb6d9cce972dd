"""Loads of weights: a slow one is waited for, a server that is dead is not.

How long reading takes follows from the size of what is read, so no one time-out fits. While a load
runs the server is asked for a small thing now and then, which it answers beside the load. One that
does not any more is given up long before a slow one would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import PolicyRef

#: Bytes a second of the slowest storage that is waited for.
_SLOWEST = 50e6
#: Between two looks at a server that loads, and how many in a row may find nobody.
_LOOK_S = 2.0
_SILENCES = 3

Get = Callable[[str], Awaitable[dict[str, Any]]]
#: Posts to the server; the last argument bounds the wait for its answer, in seconds.
Post = Callable[[str, Mapping[str, Any], float], Awaitable[dict[str, Any]]]


def reading_s(policy: PolicyRef) -> float:
    """Seconds that the slowest storage takes for a version's files; 0 where they are not here."""
    if policy.uri is None:
        return 0.0
    try:
        return sum(file.stat().st_size for file in Path(policy.uri).iterdir()) / _SLOWEST
    except OSError:
        return 0.0


class Loading:
    """`base_s` is what a load may take beside reading."""

    def __init__(
        self, engine: str, post: Post, get: Get, base_s: float, look_s: float = _LOOK_S
    ) -> None:
        self._engine, self._post, self._get = engine, post, get
        self._base_s, self._look_s = base_s, look_s

    async def post(self, path: str, payload: Mapping[str, Any], policy: PolicyRef) -> None:
        """Have the server read a version's files.

        Raises EngineTimeout where it takes too long, EngineUnavailable where the server is gone,
        and what else its failures are.
        """
        limit_s = self._base_s + await asyncio.to_thread(reading_s, policy)
        load = asyncio.ensure_future(self._post(path, payload, limit_s))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({load, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not load.done():
                watch.result()
            await load
        except EngineTimeout:
            raise EngineTimeout(f"not loaded in {limit_s:.0f} s", engine=self._engine) from None
        finally:
            load.cancel()
            watch.cancel()
            # Not each by itself: whoever is cancelled meanwhile must hear of it.
            await asyncio.gather(load, watch, return_exceptions=True)

    async def _watch(self) -> None:
        """Raises EngineUnavailable once the server answers nothing any more."""
        silences = 0
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._get("/model_info")
            except EngineRejected:
                silences = 0
            except EngineError as error:
                silences += 1
                if silences == _SILENCES:
                    raise EngineUnavailable(
                        f"answers nothing any more while it loads: {error.message}",
                        engine=self._engine,
                    ) from None
            else:
                silences = 0
