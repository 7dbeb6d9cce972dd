"""The build of the schema's revision before this one, taken from the repository's history."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gateway.store.database import REVISIONS

ROOT = Path(__file__).parents[3]


def commit() -> str:
    """The last commit whose newest revision is the one before this build's."""
    [newest] = (ROOT / "migrations" / "versions").glob(f"{REVISIONS[-1]}_*.py")
    log = ["log", "--diff-filter=A", "--format=%H", "--", str(newest.relative_to(ROOT))]
    added = _git(*log).split()
    assert added, f"{newest.name} is in no commit: the history is shallow, or it is not committed"
    return _git("rev-parse", f"{added[-1]}^").strip()


def extract(into: Path) -> None:
    """Write the files of that commit below a directory."""
    into.mkdir(parents=True)
    archive = into.with_suffix(".tar")
    _git("archive", f"--output={archive}", commit())
    subprocess.run(["tar", "-xf", str(archive), "-C", str(into)], check=True)
    archive.unlink()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout
