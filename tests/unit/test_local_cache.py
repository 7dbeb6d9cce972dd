"""What is made once, by one process, and exists only whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gateway.errors import StackError
from gateway.local.cache import cache_dir, exclusive, made_once


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NEXTSTATE_CACHE", raising=False)
    assert cache_dir() == Path("/home/someone/.cache/nextstate")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert cache_dir() == Path("/var/cache/someone/nextstate")
    monkeypatch.setenv("NEXTSTATE_CACHE", "~/models")
    assert cache_dir() == Path("/home/someone/models")


def test_many_that_want_it_make_it_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(partial: Path) -> None:
        made.append(partial)
        partial.mkdir()
        (partial / "weights").write_text("w")

    target = tmp_path / "cache" / "model"
    threads = [threading.Thread(target=made_once, args=(target, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert (target / "weights").read_text() == "w"


def test_what_failed_half_way_is_not_there_and_is_made_anew(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def broken(partial: Path) -> None:
        partial.mkdir()
        (partial / "half").touch()
        raise StackError("no")

    with pytest.raises(StackError, match="no"):
        made_once(target, broken)
    assert not target.exists()

    made_once(target, lambda partial: partial.mkdir())
    assert list(target.iterdir()) == []


def test_a_disk_error_is_one_clear_error(tmp_path: Path) -> None:
    def full(partial: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StackError, match=r"cannot write .*model: .*No space left on device"):
        made_once(tmp_path / "model", full)


def test_a_lock_is_waited_for_in_bounds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        exclusive(path, wait_s=0, busy="busy"),
        pytest.raises(StackError, match="busy"),
        exclusive(path, wait_s=0.05, busy="busy"),
    ):
        pass
    with exclusive(path, wait_s=0, busy="busy"):
        assert path.exists()
