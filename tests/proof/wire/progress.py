"""Which tests of the proof have passed: what stopped half way goes on with those that have not.

A test that passed leaves a file in `build/proof/wire/`, under a digest of the code, of the tests
and of what the clients' environments are made of; where any of it changes, all is proved anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "build" / "proof" / "wire"
_SOURCES = ("gateway", "bench", "tests", "locks")
_KINDS = {".py", ".mjs", ".json", ".jsonl", ".toml", ".txt"}


def digest_of(root: Path, sources: Iterable[str] = _SOURCES) -> str:
    """Of every file there that a test may depend on, names included."""
    found = hashlib.sha256()
    for source in sources:
        for path in sorted((root / source).rglob("*")):
            if path.suffix in _KINDS and path.is_file():
                found.update(f"{path.relative_to(root)}\0".encode())
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


class Progress:
    """A plugin: leaves out what has passed, and keeps what passes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        proved = [item for item in items if self._record(item.nodeid).exists()]
        # With everything proved there is nothing left to resume: it is proved anew.
        if proved and len(proved) < len(items):
            config.hook.pytest_deselected(items=proved)
            items[:] = [item for item in items if item not in proved]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = self._record(report.nodeid)
        if report.failed:
            record.unlink(missing_ok=True)
        elif report.passed and report.when == "call":
            self._directory.mkdir(parents=True, exist_ok=True)
            record.write_text(f"{report.nodeid}\n{report.duration:.1f} s\n")

    def _record(self, nodeid: str) -> Path:
        return self._directory / hashlib.sha256(nodeid.encode()).hexdigest()[:24]
