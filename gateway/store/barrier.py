"""A moment after which whoever wrote at the time has ended, and whoever writes sees what was."""

from __future__ import annotations

import asyncio

import asyncpg

from gateway.store.database import Database
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Others wait behind a lock that waits, so it is given up soon and asked for again.
_WAIT = "500ms"
_PAUSE_S = 0.2
_TRIES = 40


async def writers_pass(database: Database, *tables: str) -> bool:
    """Wait for all that is being written into these tables to be committed or given up.

    A statement locks its tables before it takes its snapshot: one that writes into them afterwards
    sees what was committed before this was called. False where somebody held them all the time.
    Raises StoreUnavailable.
    """
    for _ in range(_TRIES):
        try:
            async with database.transaction() as connection:
                await connection.execute(f"SET LOCAL lock_timeout = '{_WAIT}'")
                # Stands in the way of writers alone, and only until this transaction ends.
                await connection.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE MODE")
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(_PAUSE_S)
        else:
            return True
    log.warning("writers_not_passed", tables=len(tables))
    return False
