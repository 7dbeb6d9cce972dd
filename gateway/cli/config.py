"""`nextstate config`: the settings in force, and what is wrong with them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.terminal import local_settings

app = typer.Typer(no_args_is_help=True, help="The settings in force.")

Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("show")
def show(
    changed: Annotated[bool, typer.Option(help="Leave out what stands at its default.")] = False,
    as_json: Json = False,
) -> None:
    """Show every setting and where its value comes from; secrets are masked."""
    from gateway.cli.effective import effective

    found = [
        setting
        for setting in effective(local_settings())
        if not changed or setting.source != "default"
    ]
    if as_json:
        _print_json([dataclasses.asdict(setting) for setting in found])
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for setting in found:
        style = "dim" if setting.source == "default" else None
        table.add_row(
            Text(setting.name), Text(_shown(setting.value)), Text(setting.source), style=style
        )
    Console().print(table)


@app.command("check")
def check(as_json: Json = False) -> None:
    """Name every setting that is wrong; the exit code is 1 where one is."""
    from gateway.cli.effective import problems

    found = problems()
    if as_json:
        _print_json([dataclasses.asdict(problem) for problem in found])
    for problem in found if not as_json else ():
        Console().print(Text(f"{problem.setting}: {problem.problem}"), soft_wrap=True)
    if not as_json and not found:
        typer.echo("the settings are right")
    raise typer.Exit(1 if found else 0)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
