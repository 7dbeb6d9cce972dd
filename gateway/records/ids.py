"""Ids that are minted here."""

from __future__ import annotations

import os
import time
from collections import deque
from uuid import UUID

# A UUID whose text, hash and order are made in C, as those that come from Postgres are.
from asyncpg.pgproto.pgproto import UUID as FastUUID

#: Random bits for ids to come: a system call for each id costs more than all else of minting it.
_DRAWN: deque[bytes] = deque()
_DRAWN_AT_ONCE = 256
_RANDOM_BYTES = 10

# A child that went on with its parent's bits would mint the same ids.
os.register_at_fork(after_in_child=_DRAWN.clear)


def new_id() -> UUID:
    """A UUID of version 7 (RFC 9562): sortable by time, unique without coordination."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(_random(), "big")
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | (tail >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | tail & (1 << 62) - 1
    return FastUUID(value.to_bytes(16, "big"))


def first_id(at: float) -> UUID:
    """The least id that is minted at a time, in seconds since the epoch, or later."""
    return UUID(int=(int(at * 1000) & (1 << 48) - 1) << 80)


def _random() -> bytes:
    """80 bits that nobody else is given: threads share the queue, and each takes its own."""
    try:
        return _DRAWN.popleft()
    except IndexError:
        drawn = os.urandom(_RANDOM_BYTES * _DRAWN_AT_ONCE)
        first, *rest = (
            drawn[at : at + _RANDOM_BYTES] for at in range(0, len(drawn), _RANDOM_BYTES)
        )
        _DRAWN.extend(rest)
        return first
