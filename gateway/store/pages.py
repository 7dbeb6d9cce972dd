"""Pages of a list: a cursor names the last row given out, so that none is seen twice or missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from gateway.errors import InvalidRequest

Found = dict[str, Any]

MOST_ROWS = 1000
#: The column that a page is ordered by, in whole numbers, beside `id`.
POSITION = "position"
#: Microseconds in the year 2286; as a number of a version it is out of reach.
_LARGEST = 10**16
_MARK = "~"


def wanted(limit: int) -> int:
    """A limit within bounds."""
    return max(1, min(limit, MOST_ROWS))


def page(rows: Sequence[Any], limit: int, key: Callable[[Found], object]) -> Found:
    """`{"items": […], "next": cursor or None}` of one row more than `limit`, if there are as many.

    `key` tells the id of a row; `position` is taken out of it.
    """
    items = [dict(row) for row in rows[:limit]]
    following = None
    if len(rows) > limit:
        following = f"{items[-1][POSITION]}{_MARK}{key(items[-1])}"
    for item in items:
        del item[POSITION]
    return {"items": items, "next": following}


def position(cursor: str | None) -> tuple[int | None, UUID | None]:
    """What a cursor names; two Nones for none. Raises InvalidRequest for one of no page."""
    if cursor is None:
        return None, None
    number, _, last_id = cursor.partition(_MARK)
    try:
        found = int(number), UUID(last_id)
    except ValueError:
        raise _unknown() from None
    if not 0 <= found[0] < _LARGEST:
        raise _unknown()
    return found


def _unknown() -> InvalidRequest:
    return InvalidRequest("The cursor is not one that was given out.", param="cursor")


def microseconds(column: str) -> str:
    """SQL for a timestamp as a `position`."""
    return f"(extract(epoch FROM {column}) * 1000000)::int8"


def before(column: str, id_column: str, number: str, last_id: str) -> str:
    """SQL for what comes after a cursor where the latest come first."""
    moment = f"'epoch'::timestamptz + {number} * interval '1 microsecond'"
    return f"({number}::int8 IS NULL OR ({column}, {id_column}) < ({moment}, {last_id}::uuid))"
