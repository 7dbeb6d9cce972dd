"""Ids of responses and of their items, made of the turn's own id.

So they are unique for ever, and an id that a client sends back names the turn that it came from.
"""

from __future__ import annotations

import re
from enum import StrEnum
from uuid import UUID

_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_ITEM = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{32})[0-9a-f]{4}")


class Prefix(StrEnum):
    """What an item is, as the first letters of its id."""

    REASONING = "rs"
    MESSAGE = "msg"
    CALL = "fc"
    CALL_OUTPUT = "fco"


def response_id(turn_id: UUID) -> str:
    return f"resp_{turn_id.hex}"


def turn_of_response(id_: str) -> UUID | None:
    """The turn of a response's id; None where it is no id of ours."""
    found = _RESPONSE.fullmatch(id_)
    return UUID(found[1]) if found else None


def output_id(prefix: Prefix, turn_id: UUID, index: int) -> str:
    """The id of a turn's output item."""
    return f"{prefix}_{turn_id.hex}{index:04x}"


def input_id(prefix: Prefix, turn_id: UUID, index: int) -> str:
    """The id of an item that a turn was given: never that of an output item."""
    return f"{prefix}_{turn_id.hex}{index:04x}in"


def turn_of_item(id_: object) -> UUID | None:
    """The turn of an output item's id; None where it is no id of ours."""
    found = _ITEM.fullmatch(id_) if isinstance(id_, str) else None
    return UUID(found[1]) if found else None
