"""Points that were proved are left out, as long as the code is the one that they were proved of."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import pytest

RECORDS = Path("build/proof/trainer")
_ROOT = Path(__file__).parents[3]


@functools.cache
def _code() -> str:
    """A digest of what is killed, what it stores in, and what kills it."""
    digest = hashlib.sha256()
    for part in ("trainer", "gateway/store", "migrations", "tests/proof/trainer"):
        for path in sorted((_ROOT / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def record_of(point: str) -> Path:
    return RECORDS / f"{point.replace(' ', '-')}.{_code()}.json"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    proved = [
        item
        for item in items
        if (call := getattr(item, "callspec", None)) is not None
        and Path(item.path).parent == Path(__file__).parent
        and record_of(call.params["point"]).exists()
    ]
    # With everything proved there is nothing left to resume: it is proved anew.
    if proved and len(proved) < len(items):
        config.hook.pytest_deselected(items=proved)
        items[:] = [item for item in items if item not in proved]
