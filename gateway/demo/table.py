"""The run on a terminal: a live table, or one line a version where nobody watches."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gateway.demo.claims import Claim
from gateway.demo.measure import Score, VersionRow

_COLUMNS = ("version", "turns", "score", "95 %", "tokens", "facts", "lag", "swap ms")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _cells(name: str, score: Score, *rest: str) -> list[str]:
    span = "-" if score.ci95 is None else f"{score.ci95[0]:+.2f} {score.ci95[1]:+.2f}"
    return [
        name,
        str(score.turns),
        _number(score.mean, "+.2f"),
        span,
        _number(score.tokens, ".1f"),
        *rest,
    ]


def _row(row: VersionRow) -> list[str]:
    return _cells(
        str(row.version),
        row.score,
        _number(row.facts, ".2f"),
        _number(row.lag_max, "d") if row.lag_max is not None else "-",
        _number(row.swap_ms, ".0f"),
    )


def scores(rows: Sequence[VersionRow], control: Score, *, caption: str = "") -> Table:
    """A line a version and one for the control arm.

    `turns` are judged first turns, `score` the mean of theirs, `tokens` of a reply's tokens, `lag`
    the largest of what the version was trained on.
    """
    table = Table(*_COLUMNS, caption=caption or None, caption_justify="left")
    for column in table.columns:
        column.justify = "right"
        column.no_wrap = True
    for row in rows:
        table.add_row(*_row(row))
    table.add_row(*_cells("control", control, "-", "-", "-"), style="dim")
    return table


def verdicts(claims: Sequence[Claim]) -> Table:
    table = Table("claim", "held", "measured")
    for claim in claims:
        style = "green" if claim.held else "bold red"
        table.add_row(claim.name, "yes" if claim.held else "NO", claim.detail, style=style)
    return table


class Progress:
    """Shows a run while it goes on. `show` may be called as often as there is news."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._told = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def show(
        self, rows: Sequence[VersionRow], control: Score, *, running: int, elapsed_s: float
    ) -> None:
        """`running` sessions are open now."""
        if self._live:
            caption = f"{running} sessions open, {elapsed_s:.0f} s"
            self._live.update(scores(rows, control, caption=caption), refresh=True)
            return
        # The newest version has only begun; one that has a successor is as good as done.
        for row in rows[:-1]:
            if row.version > self._told:
                self._told = row.version
                text = line(row, running=running, elapsed_s=elapsed_s)
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def line(row: VersionRow, *, running: int, elapsed_s: float) -> str:
    """One version in one line, as `Progress` prints it where there is no terminal."""
    version, turns, mean, span, tokens, facts, lag, swap = _row(row)
    return (
        f"version {version}: {turns} first turns, score {mean} ({span}), {tokens} tokens a reply, "
        f"facts {facts}, lag {lag}, swap {swap} ms, {running} sessions open, {elapsed_s:.0f} s"
    )
