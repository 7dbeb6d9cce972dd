"""Ids: their layout, and that nobody mints another's."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from gateway.records import new_id


def test_is_a_uuid_of_version_7_that_tells_its_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    minted = new_id()
    after = time.time_ns() // 1_000_000
    assert minted.version == 7
    assert minted.variant == "specified in RFC 4122"
    assert before <= minted.int >> 80 <= after


def test_threads_never_mint_the_same_id() -> None:
    minted: list[list[UUID]] = [[] for _ in range(4)]

    def mint(own: list[UUID]) -> None:
        own.extend(new_id() for _ in range(2_000))

    threads = [threading.Thread(target=mint, args=(own,)) for own in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    random_bits = {id_.int & (1 << 76) - 1 for own in minted for id_ in own}
    assert len(random_bits) == 8_000


def test_a_forked_child_draws_bits_of_its_own() -> None:
    new_id()  # some are drawn and wait
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"".join(new_id().bytes for _ in range(16)))
        finally:
            os._exit(0)
    os.close(writing)
    told = b""
    while part := os.read(reading, 4096):
        told += part
    os.close(reading)
    os.waitpid(child, 0)
    theirs = {UUID(bytes=told[at : at + 16]).int & (1 << 74) - 1 for at in range(0, 256, 16)}
    ours = {new_id().int & (1 << 74) - 1 for _ in range(256)}
    assert len(theirs) == 16
    assert not theirs & ours
