"""Which of several engines a session belongs to."""

from __future__ import annotations

import hashlib
import os


def weight(engine: str, key: str) -> bytes:
    """Highest random weight (Thaler and Ravishankar 1998): an engine that goes moves no others."""
    return hashlib.blake2b(f"{engine}\0{key}".encode(), digest_size=8).digest()


def in_share(share: float, trial: str, key: str) -> bool:
    """Whether a session is among a share of all in one trial; always the same ones."""
    digest = hashlib.blake2b(f"{trial}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def any_key() -> str:
    """For a request that belongs to no session."""
    return os.urandom(8).hex()
