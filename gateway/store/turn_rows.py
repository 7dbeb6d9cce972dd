"""Every table that says something of a turn, and how all of it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import asyncpg

#: Tables of which rows belong to a turn, by their column `turn_id`. A test holds the schema
#: against it, so that none is forgotten.
OF_TURNS = (
    "echoes",
    "next_states",
    "feedback",
    "judgements",
    "teachings",
    "samples",
    "verdicts",
)

#: Rows are found by their keys, one by one, whatever the statistics say. Turns go first: who adds
#: a row of one holds it, and what was added until then is seen.
DELETES: Mapping[str, str] = {
    "turns": "DELETE FROM turns WHERE id = ANY($1::uuid[])",
    **{table: f"DELETE FROM {table} WHERE turn_id = ANY($1::uuid[])" for table in OF_TURNS},  # noqa: S608 - made of constants
}


#: Where rows of a turn are added by whoever does not hold it.
UNHELD = ("next_states", "feedback")


async def delete_turns(connection: asyncpg.Connection, turn_ids: Sequence[UUID]) -> dict[str, int]:
    """Delete turns and all that is said of them; how many rows of each table."""
    return await _delete(connection, DELETES, turn_ids)


async def delete_late(connection: asyncpg.Connection, turn_ids: Sequence[UUID]) -> dict[str, int]:
    """Delete what was still being said of turns that are gone; how many rows of each table."""
    return await _delete(connection, OF_TURNS, turn_ids)


async def _delete(
    connection: asyncpg.Connection, tables: Iterable[str], turn_ids: Sequence[UUID]
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in tables:
        done = await connection.execute(DELETES[table], turn_ids)
        counts[table] = int(done.rpartition(" ")[2])
    return counts
