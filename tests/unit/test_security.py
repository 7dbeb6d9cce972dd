"""What holds for the source and the locks, whoever changes them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gateway.config import LogSettings
from gateway.telemetry import configure_logging, get_logger
from tests.unit.test_telemetry import closed

ROOT = Path(__file__).resolve().parents[2]
#: Where the secrets of clients are in hand.
SECRET = re.compile(r"(^|_)(secret|password|api_key|digest)$")


def compared(source: str) -> list[str]:
    """Comparisons by `==` or `in` whose one side is named as a secret."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        if not isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            continue
        for side in (node.left, *node.comparators):
            name = getattr(side, "id", None) or getattr(side, "attr", None) or ""
            if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
                name = str(side.slice.value)
            if SECRET.search(name):
                found.append(ast.unparse(node))
    return found


def test_a_comparison_of_secrets_is_noticed():
    assert compared("if row['digest'] == digest: pass") == ["row['digest'] == digest"] * 2
    assert compared("hmac.compare_digest(row['digest'], digest)") == []
    assert compared("user.password != given") == ["user.password != given"]


def test_keys_are_compared_in_the_same_time_whatever_they_are():
    """Only digests are looked up, and what is found is compared by `compare_digest`."""
    files = [*(ROOT / "gateway" / "api").rglob("*.py"), *(ROOT / "gateway" / "store").rglob("*.py")]
    assert [(path.name, one) for path in files for one in compared(path.read_text())] == []
    keys = (ROOT / "gateway" / "store" / "keys.py").read_text()
    assert 'hmac.compare_digest(row["digest"], digest)' in keys
    assert "hashlib.sha256" in keys


@pytest.mark.parametrize("lock", sorted((ROOT / "locks").glob("*.txt")), ids=lambda one: one.name)
def test_every_package_is_pinned(lock: Path):
    lines = [
        line.strip() for line in lock.read_text().splitlines() if not line.startswith(("#", " "))
    ]
    # A universal lock has a version of a package for each of several markers.
    names = [re.split(r"[=@ ]", line)[0] for line in lines if line and ";" not in line]
    assert names
    assert len(names) == len({*names})
    for line in filter(None, lines):
        assert re.match(r"^(@?[\w./-]+)(\[[\w,-]+\])?(==|@)[\w.+!-]+( |$|\\)", line), line


def fail():
    raise ValueError("of two\nlines")


def test_a_terminal_is_not_moved_by_what_is_logged(tmp_path: Path):
    with (tmp_path / "log").open("w") as out:
        configure_logging(LogSettings(format="console"), "gateway", out)
        get_logger("one").info("refused", why="a\r\n\x9b31m\x07 fake line", by="x\x1b[2J")
        try:
            fail()
        except ValueError:
            get_logger("one").exception("request_failed")
        closed()
    text = (tmp_path / "log").read_text()
    first, *rest = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")[:-1]
    assert "fake line" in first
    assert r"x\x1b[2J" in first
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", first)
    assert "Traceback (most recent call last):" in rest[1]
    assert rest[-1] == "lines"
