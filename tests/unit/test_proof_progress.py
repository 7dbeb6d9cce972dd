"""A proof that was interrupted goes on with what has not passed, while nothing has changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.proof.wire.progress import Progress, digest_of


def report(nodeid: str, when: str, outcome: str) -> Any:
    return SimpleNamespace(
        nodeid=nodeid,
        when=when,
        duration=0.1,
        passed=outcome == "passed",
        failed=outcome == "failed",
    )


def left_of(progress: Progress, *nodeids: str) -> tuple[list[str], list[str]]:
    """(what is run, what is left out)."""
    out: list[Any] = []

    def deselected(items: list[Any]) -> None:
        out.extend(items)

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselected))
    items: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in nodeids]
    progress.pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items], [item.nodeid for item in out]


def test_what_passed_is_left_out_until_all_has(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "records")
    assert left_of(progress, "a", "b") == (["a", "b"], [])
    for when in ("setup", "call", "teardown"):
        progress.pytest_runtest_logreport(report("a", when, "passed"))
    assert left_of(Progress(tmp_path / "records"), "a", "b") == (["b"], ["a"])
    progress.pytest_runtest_logreport(report("b", "call", "passed"))
    assert left_of(progress, "a", "b") == (["a", "b"], [])


def test_what_fails_skips_or_never_ran_has_not_passed(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.pytest_runtest_logreport(report("good", "call", "passed"))
    progress.pytest_runtest_logreport(report("wrong", "call", "failed"))
    progress.pytest_runtest_logreport(report("untidy", "call", "passed"))
    progress.pytest_runtest_logreport(report("untidy", "teardown", "failed"))
    progress.pytest_runtest_logreport(report("skipped", "setup", "skipped"))
    progress.pytest_runtest_logreport(report("only set up", "setup", "passed"))
    all_ = ("good", "wrong", "untidy", "skipped", "only set up", "new")
    assert left_of(progress, *all_) == (list(all_[1:]), ["good"])


def test_the_digest_is_another_for_another_text_or_name(tmp_path: Path) -> None:
    file = tmp_path / "gateway" / "a.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    digests = [digest_of(tmp_path, ["gateway"])]
    file.write_text("x = 2\n")
    digests.append(digest_of(tmp_path, ["gateway"]))
    file.rename(file.with_name("b.py"))
    digests.append(digest_of(tmp_path, ["gateway"]))
    (file.parent / "b.pyc").write_text("")
    assert len(set(digests)) == 3
    assert digest_of(tmp_path, ["gateway"]) == digests[-1]
