"""Whether an engine answers, and whether an operator has it drained."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.engine.base import EngineStatus
from gateway.errors import EngineError, EngineTimeout
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Silent status calls in a row before an engine counts as down: a busy one answers late.
_SILENCES = 3


class Answers(Protocol):
    @property
    def name(self) -> str: ...

    async def status(self) -> EngineStatus: ...


class Health:
    """`look` is called by one task; everything else only reads, or sets `wake`."""

    def __init__(self, engine: Answers) -> None:
        self._asked = engine
        self.name = engine.name
        self.healthy = False
        #: No new request is to go there.
        self.draining = False
        self.status: EngineStatus | None = None
        self.error: str | None = None
        self.wake = asyncio.Event()
        self._silences = 0

    def drain(self, draining: bool) -> None:
        """Whether the engine is to get no new request. What runs there ends there."""
        if draining != self.draining:
            self.draining = draining
            log.info("engine_draining" if draining else "engine_resumed", engine=self.name)
            self.wake.set()

    async def look(self) -> EngineStatus | None:
        """The engine's status, None where there is none."""
        try:
            status = await self._asked.status()
        except EngineTimeout as error:
            self._silences += 1
            if self._silences >= _SILENCES:
                self._down(error)
            return None
        except EngineError as error:
            self._down(error)
            return None
        self._silences = 0
        if not self.healthy:
            log.info("engine_up", engine=self.name, model=status.model)
        self.healthy, self.status, self.error = status.ready, status, None
        return status

    def _down(self, error: EngineError) -> None:
        if self.healthy or self.error is None:
            log.warning("engine_down", engine=self.name, error=error.message)
        self.healthy, self.error = False, error.message
