"""The spool keeps whole frames through crashes, bounds and a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.store.spool import Spool


def spool(directory: Path, **values: int) -> Spool:
    return Spool(directory, **{"max_bytes": 1 << 20, **values})


def drained(kept: Spool) -> list[bytes]:
    found: list[bytes] = []
    for segment in kept.segments():
        with kept.draining(segment) as payloads:
            found += payloads
    return found


def test_payloads_come_back_in_order_and_once(tmp_path: Path):
    kept = spool(tmp_path / "s")
    kept.append([b"one", b""])
    kept.append([b"two" * 1000])
    assert kept.waiting()
    assert drained(kept) == [b"one", b"", b"two" * 1000]
    assert not kept.waiting()
    assert drained(kept) == []


def test_files_are_rotated_and_private(tmp_path: Path):
    kept = spool(tmp_path / "s", segment_bytes=100)
    for number in range(5):
        kept.append([bytes([number]) * 92])
    assert len(kept.segments()) == 5
    assert {path.stat().st_mode & 0o777 for path in kept.segments()} == {0o600}
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert [payload[0] for payload in drained(kept)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 20])
def test_a_torn_tail_loses_only_itself(tmp_path: Path, cut: int):
    kept = spool(tmp_path)
    kept.append([b"whole", b"x" * 30])
    (segment,) = kept.segments()
    os.truncate(segment, 8 + 5 + cut)
    assert drained(spool(tmp_path)) == [b"whole"]


def test_a_flipped_bit_ends_the_file(tmp_path: Path):
    kept = spool(tmp_path)
    kept.append([b"first", b"second"])
    (segment,) = kept.segments()
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert drained(spool(tmp_path)) == [b"first"]


def test_a_full_spool_says_so_and_keeps_what_it_has(tmp_path: Path):
    kept = spool(tmp_path, max_bytes=100)
    kept.append([b"a" * 80])
    with pytest.raises(StoreUnavailable, match="limit of 100 bytes"):
        kept.append([b"b" * 20])
    assert drained(kept) == [b"a" * 80]
    kept.append([b"c" * 80])
    assert drained(kept) == [b"c" * 80]


def test_a_disk_that_refuses_leaves_no_half_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = spool(tmp_path)
    kept.append([b"before"])

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailable, match="No space left"):
            kept.append([b"lost"])
    kept.append([b"after"])
    assert drained(kept) == [b"before", b"after"]


def test_a_failed_drain_keeps_the_file(tmp_path: Path):
    kept = spool(tmp_path)
    kept.append([b"one"])
    (segment,) = kept.segments()
    with pytest.raises(RuntimeError), kept.draining(segment):
        raise RuntimeError
    assert drained(kept) == [b"one"]


_HOLD = """
import sys
from pathlib import Path
from gateway.store.spool import Spool
kept = Spool(Path(sys.argv[1]), max_bytes=1 << 20)
kept.append([b"theirs"])
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_file_of_a_living_process_is_left_alone_and_of_a_dead_one_drained(tmp_path: Path):
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        assert drained(spool(tmp_path)) == []
        other.kill()
    assert drained(spool(tmp_path)) == [b"theirs"]
