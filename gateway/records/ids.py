"""Ids that are minted here."""

from __future__ import annotations

import os
import time
from collections import deque
from uuid import UUID

# A UUID whose text, hash and order are made in C, as those that come from Postgres are.
from asyncpg.pgproto.pgproto import UUID as FastUUID

#: What ids to come end in: a system call for each costs more than all else of minting it.
_DRAWN: deque[bytes] = deque()
_DRAWN_AT_ONCE = 256
_RANDOM_BYTES = 10

# A child that went on with its parent's bits would mint the same ids.
os.register_at_fork(after_in_child=_DRAWN.clear)


def new_id() -> UUID:
    """A UUID of version 7 (RFC 9562): sortable by time, unique without coordination."""
    # Threads share the queue, and each takes its own.
    try:
        tail = _DRAWN.popleft()
    except IndexError:
        tail = _drawn()
    return FastUUID((time.time_ns() // 1_000_000).to_bytes(6, "big") + tail)


def first_id(at: float) -> UUID:
    """The least id that is minted at a time, in seconds since the epoch, or later."""
    return UUID(int=(int(at * 1000) & (1 << 48) - 1) << 80)


def _drawn() -> bytes:
    """The last 10 bytes of an id that nobody else is given; others are kept for those to come.

    All bits of them are random but those that tell version and variant.
    """
    drawn = bytearray(os.urandom(_RANDOM_BYTES * _DRAWN_AT_ONCE))
    for at in range(0, len(drawn), _RANDOM_BYTES):
        drawn[at] = 0x70 | drawn[at] & 0x0F
        drawn[at + 2] = 0x80 | drawn[at + 2] & 0x3F
    first, *rest = (
        bytes(drawn[at : at + _RANDOM_BYTES]) for at in range(0, len(drawn), _RANDOM_BYTES)
    )
    _DRAWN.extend(rest)
    return first
