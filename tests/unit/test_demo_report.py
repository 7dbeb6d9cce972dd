from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from gateway.demo.claims import Claim
from gateway.demo.measure import Score, VersionRow
from gateway.demo.report import Report
from gateway.demo.table import Progress, scores, verdicts
from gateway.demo.users import Tally

NOTHING = Score(turns=0, mean=None, ci95=None, tokens=None)
ROWS = [
    VersionRow(
        version=0,
        score=Score(turns=32, mean=-0.5, ci95=(-0.75, -0.25), tokens=52.123456),
        facts=0.9,
        lag_max=None,
        swap_ms=None,
    ),
    VersionRow(
        version=1,
        score=Score(turns=16, mean=0.25, ci95=(-0.25, 0.75), tokens=30.0),
        facts=None,
        lag_max=1,
        swap_ms=87.4,
    ),
    VersionRow(version=2, score=NOTHING, facts=None, lag_max=0, swap_ms=91.0),
]
CONTROL = Score(turns=64, mean=-0.4, ci95=(-0.6, -0.2), tokens=51.0)
REPORT = Report(
    rows=ROWS,
    control=CONTROL,
    gain=None,
    claims=[Claim(name="versions", held=False, detail="2 published, 8 wanted")],
    tally=Tally(requests=200, failed=1, errors=["APITimeoutError"]),
    wall_s=612.34567,
)


def test_the_report_on_disk(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "new" / "demo")
    report = json.loads((tmp_path / "new" / "demo" / "report.json").read_text())
    assert report["versions"][0] == {
        "version": 0,
        "turns": 32,
        "mean_score": -0.5,
        "ci95": [-0.75, -0.25],
        "facts_right": 0.9,
        "reply_tokens": 52.1235,
        "version_lag_max": None,
        "swap_ms": None,
    }
    assert report["versions"][2]["mean_score"] is None
    assert report["control"] == {"turns": 64, "mean_score": -0.4, "ci95": [-0.6, -0.2]}
    assert (report["failed_requests"], report["wall_s"]) == (1, 612.3457)
    png = (tmp_path / "new" / "demo" / "report.png").read_bytes()
    assert png.startswith(b"\x89PNG")


def test_the_picture_shows_judged_versions_and_asked_facts() -> None:
    above, below = REPORT.figure().axes
    drawn = above.containers[0]
    assert list(drawn.lines[0].get_xdata()) == [0, 1]
    assert list(drawn.lines[0].get_ydata()) == [-0.5, 0.25]
    assert [list(line.get_ydata()) for line in below.lines] == [[0.9]]


def test_a_run_without_any_turn_still_has_a_picture(tmp_path: Path) -> None:
    empty = Report(rows=[], control=NOTHING, gain=None, claims=[], tally=Tally(), wall_s=1.0)
    empty.write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["versions"] == []


def printed(*, terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=120), out


def test_without_a_terminal_each_version_is_one_line_told_once() -> None:
    console, out = printed(terminal=False)
    with Progress(console) as progress:
        progress.show(ROWS[:1], CONTROL, running=8, elapsed_s=1.0)
        progress.show(ROWS[:2], CONTROL, running=8, elapsed_s=40.0)
        progress.show(ROWS[:2], CONTROL, running=8, elapsed_s=41.0)
        progress.show(ROWS, CONTROL, running=7, elapsed_s=80.0)
    assert out.getvalue().splitlines() == [
        (
            "version 0: 32 first turns, score -0.50 (-0.75 -0.25), 52.1 tokens a reply, facts "
            "0.90, lag -, swap - ms, 8 sessions open, 40 s"
        ),
        (
            "version 1: 16 first turns, score +0.25 (-0.25 +0.75), 30.0 tokens a reply, facts -, "
            "lag 1, swap 87 ms, 7 sessions open, 80 s"
        ),
    ]


def test_on_a_terminal_the_table_is_live() -> None:
    console, out = printed(terminal=True)
    with Progress(console) as progress:
        progress.show(ROWS, CONTROL, running=8, elapsed_s=40.0)
        assert "8 sessions open, 40 s" in out.getvalue()
        assert "+0.25" in out.getvalue()


def test_the_summary_names_what_failed() -> None:
    console, out = printed(terminal=False)
    console.print(scores(ROWS, CONTROL))
    console.print(verdicts(REPORT.claims))
    lines = out.getvalue().splitlines()
    assert any("control" in line and "-0.40" in line for line in lines)
    assert any("versions" in line and "NO" in line and "8 wanted" in line for line in lines)
