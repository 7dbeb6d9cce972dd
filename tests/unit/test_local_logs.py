"""The last lines of logs, together or one by one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gateway.errors import StackError
from gateway.local.logs import _added, show


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "engine.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "judge.log").write_text("scored\n")
    return tmp_path


def test_all_logs_are_told_apart(logs: Path) -> None:
    out = io.StringIO()
    show(logs, None, lines=2, follow=False, out=out)
    assert out.getvalue() == "engine    two\nengine    three\njudge     scored\n"


def test_one_log_is_shown_as_it_is(logs: Path) -> None:
    out = io.StringIO()
    show(logs, "engine", lines=1, follow=False, out=out)
    assert out.getvalue() == "three\n"


def test_an_unknown_name_is_answered_with_those_there_are(logs: Path) -> None:
    with pytest.raises(StackError, match=r"no log of 'gateway' in .*; there are: engine, judge"):
        show(logs, "gateway", lines=1, follow=False, out=io.StringIO())
    with pytest.raises(StackError, match="no logs in"):
        show(logs / "none", None, lines=1, follow=False, out=io.StringIO())


def test_following_gives_whole_lines_and_begins_again_after_a_trim(logs: Path) -> None:
    path, out = logs / "judge.log", io.StringIO()
    with path.open("a") as log:
        log.write("hinted\nhalf a")
    place = _added(out, "judge", path, len("scored\n"), prefix=False)
    assert out.getvalue() == "hinted\n"

    with path.open("a") as log:
        log.write(" line\n")
    place = _added(out, "judge", path, place, prefix=False)
    assert out.getvalue() == "hinted\nhalf a line\n"

    path.write_text("new\n")
    assert _added(out, "judge", path, place, prefix=False) == len("new\n")
    assert out.getvalue().endswith("half a line\nnew\n")
