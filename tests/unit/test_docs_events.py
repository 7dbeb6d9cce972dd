"""The list of events in the docs is that of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"log", "_log", "logger"})

#: Names that are no literals where they are logged: how a publication ended.
COMPUTED = {"trainer/delivery.py: done.outcome": {"published", "canary"}}


def logged() -> Iterator[tuple[Path, ast.expr]]:
    """Every call of a logger: the file, and the expression of its event's name."""
    for package in ("gateway", "judge", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in METHODS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in LOGGERS
                ):
                    yield path, node.args[0]


def events() -> set[str]:
    """Names that are written where they are logged, and the computed ones."""
    # The sink reports losses without a logger.
    found = {"log_lines_dropped"}
    for path, name in logged():
        strings = {
            part.value
            for part in ast.walk(name)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        if not strings:
            strings = COMPUTED[f"{path.relative_to(ROOT)}: {ast.unparse(name)}"]
        found |= strings
    return found


def documented() -> list[str]:
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_every_event_is_listed_once_and_none_that_is_not_there():
    listed = documented()
    assert len(listed) == len({*listed})
    assert events() - {*listed} == set(), "list these in docs/events.md"
    assert {*listed} - events() == set(), "nothing logs these any more"
