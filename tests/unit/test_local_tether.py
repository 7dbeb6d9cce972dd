"""Which account a server that refuses root runs as, and that children end with their parent."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from gateway.local import tether
from gateway.local.tether import candidates, tethered


def accounts(monkeypatch: pytest.MonkeyPatch, **named: int) -> None:
    """Pretend that these are the machine's accounts, by name."""
    entries = {
        name: pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))
        for name, uid in {"root": 0, **named}.items()
    }
    monkeypatch.setattr(tether.pwd, "getpwall", lambda: list(entries.values()))
    monkeypatch.setattr(tether.pwd, "getpwnam", entries.__getitem__)


def test_an_ordinary_user_runs_it_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, ann=1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    [own] = candidates()
    assert (own.prefix, own.uid) == ([], 1000)


def test_a_user_without_a_name_borrows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, nobody=65534)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    [mapped] = candidates()
    assert mapped.prefix[:3] == ["unshare", "--user", "--map-user=65534"]
    assert mapped.uid == 1234


def test_root_is_mapped_to_an_account_that_exists_or_takes_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accounts(monkeypatch, daemon=1, nobody=65534)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mapped, other = candidates()
    assert (mapped.prefix[2], mapped.uid) == ("--map-user=65534", 0)
    assert other.uid == 65534
    assert "--reuid=65534" in other.prefix


def test_a_child_of_another_parent_gives_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when the parent died before the child could ask to be told."""
    run = tethered(["touch", str(tmp_path / "ran")], signal="TERM")
    assert subprocess.run(run, check=False).returncode == 0
    (tmp_path / "ran").unlink()

    monkeypatch.setattr(os, "getpid", lambda: 1)
    orphaned = tethered(["touch", str(tmp_path / "ran")], signal="TERM")
    assert subprocess.run(orphaned, check=False).returncode == 125
    assert not (tmp_path / "ran").exists()
