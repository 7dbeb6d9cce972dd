"""Ids that are minted here."""

from __future__ import annotations

import os
import time
from uuid import UUID


def new_id() -> UUID:
    """A UUID of version 7 (RFC 9562): sortable by time, unique without coordination."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | (tail >> 68 & 0xFFF) << 64
    return UUID(int=value | 0b10 << 62 | tail & (1 << 62) - 1)
