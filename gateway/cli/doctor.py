"""`nextstate doctor`: is everything there that serving and learning need, and how to mend it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gateway.cli.finding import Finding
    from gateway.local.config import LocalSettings

_STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check settings, database, engines, model, GPU, disk, clock and ports.

    The exit code is 1 where something is wrong; warnings leave it at 0.
    """
    found = examine()
    counts = Counter(one.state for one in found)
    if as_json:
        answer = {
            "status": "wrong" if counts["wrong"] else "warning" if counts["warning"] else "ok",
            "findings": [dataclasses.asdict(one) for one in found],
        }
        typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
    else:
        Console().print(screen(found))
    raise typer.Exit(1 if counts["wrong"] else 0)


def examine() -> list[Finding]:
    """All findings; where settings are wrong, those alone."""
    from gateway.cli import host, parts
    from gateway.cli.effective import problems
    from gateway.cli.finding import ok, wrong

    bad = problems()
    if bad:
        return [
            wrong("settings", f"{one.setting}: {one.problem}", "see `nextstate config check`")
            for one in bad
        ]
    settings = in_force()
    return [
        ok("settings", "right"),
        *asyncio.run(parts.findings(settings)),
        *host.findings(settings),
    ]


def in_force() -> LocalSettings:
    """The settings, and those of the stack over them where one runs here."""
    import yaml

    from gateway.cli.terminal import local_settings
    from gateway.config import load
    from gateway.local import state
    from gateway.local.config import LocalSettings

    settings = local_settings()
    written = settings.home / "settings.yaml"
    if state.running(settings.home) is None or not written.is_file():
        return settings
    return load(LocalSettings, **(yaml.safe_load(written.read_text()) or {}))


def screen(found: list[Finding]) -> Table:
    """As people read it; what to do stands below what was found."""
    table = Table("", "what", "found", box=None, pad_edge=False)
    for one in found:
        said = Text(one.said)
        if one.mend:
            said.append(f"\n→ {one.mend}", style="dim")
        table.add_row(Text(one.state, style=_STYLES[one.state]), Text(one.what), said)
    return table
