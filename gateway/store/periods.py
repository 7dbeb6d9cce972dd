"""A stretch of time, as bounds of ids: those of turns are UUIDs of version 7, time first.

No index on a time is needed where the primary key is one.
"""

from __future__ import annotations

from uuid import UUID

#: The first and the last id of all.
FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)

_LARGEST_MS = 2**48 - 1


def first_id(since: float) -> UUID:
    """No turn that was made since then, in seconds since the epoch, has a smaller id."""
    return UUID(int=min(max(0, int(since * 1000)), _LARGEST_MS) << 80)


def bounds(since: float | None, until: float | None) -> tuple[UUID, UUID]:
    """Ids of turns made in [since, until) are in [first, last)."""
    return (
        FIRST if since is None else first_id(since),
        LAST if until is None else first_id(until),
    )
