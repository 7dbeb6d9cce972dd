"""Models as clients are shown them: one, or a list of them, in the form of each family of APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.anthropic_blocks import wrong

Card = dict[str, Any]

_PAGE, _MOST = 20, 1000
#: The original's word for a time that is not known.
_UNKNOWN = "1970-01-01T00:00:00Z"


def openai_card(name: str) -> Card:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nextstate"}


def openai_list(names: Sequence[str]) -> Card:
    return {"object": "list", "data": [openai_card(name) for name in names]}


def anthropic_card(name: str) -> Card:
    return {"type": "model", "id": name, "display_name": name, "created_at": _UNKNOWN}


def anthropic_list(names: Sequence[str], query: Mapping[str, str]) -> Card:
    """The page that a query asks for. Raises InvalidRequest."""
    limit = query.get("limit", str(_PAGE))
    if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= _MOST:
        raise wrong("limit", f"expected a number from 1 to {_MOST}")
    size = int(limit)
    if "before_id" in query:
        end = _place(names, "before_id", query["before_id"])
        start = max(0, end - size)
        more = start > 0
    else:
        start = _place(names, "after_id", query["after_id"]) + 1 if "after_id" in query else 0
        end = start + size
        more = end < len(names)
    page = names[start:end]
    return {
        "data": [anthropic_card(name) for name in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": more,
    }


def _place(names: Sequence[str], param: str, id_: str) -> int:
    if id_ not in names:
        raise wrong(param, "there is no such model")
    return names.index(id_)
