"""Closes the sessions that nobody came back to, in whichever process is there."""

from __future__ import annotations

import asyncio

import asyncpg

from gateway.classify import Awareness
from gateway.errors import StoreUnavailable
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: How many one statement closes, so that it is short.
_AT_ONCE = 500


async def close_idle_sessions(turns: TurnStore, awareness: Awareness, every_s: float) -> None:
    """Look every `every_s` until cancelled, so that each last turn gets a verdict.

    Any number of processes may: one skips what another is closing.
    """
    while True:
        await asyncio.sleep(every_s)
        try:
            closed = await _close(turns, awareness)
        except (StoreUnavailable, asyncpg.PostgresError) as error:
            # Also a deadlock with a gateway that reopens one of them; the next look finds them.
            log.warning("idle_sessions_left_open", error=type(error).__name__)
        else:
            if closed:
                log.info("sessions_closed", reason="idle", sessions=closed)


async def _close(turns: TurnStore, awareness: Awareness) -> int:
    """Close all that are idle; how many."""
    total = 0
    while closed := await turns.close_idle(awareness.settings.session_timeout_s, _AT_ONCE):
        total += closed
        if closed < _AT_ONCE:
            break
    return total
