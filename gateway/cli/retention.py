"""`nextstate retention`: what tenants keep for a time only, and clearing what is due."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.database import on_database
from gateway.cli.terminal import local_settings, say
from gateway.errors import Conflict

if TYPE_CHECKING:
    from gateway.store.database import Database
    from gateway.store.retention import Retention

_NAME = "nextstate-retention"

app = typer.Typer(no_args_is_help=True, help="What is kept for a time only.")

Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command()
def plan(as_json: Json = False) -> None:
    """Show what is kept for how long, and how many turns are due; changes nothing."""

    async def work(database: Database) -> list[dict[str, Any]]:
        return await _retention(database).plan()

    planned = on_database(work, application=_NAME)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(planned), indent=2))
        return
    table = Table("tenant", "part", "days", "until", "turns due", box=None, pad_edge=False)
    for one in planned:
        until = datetime.fromtimestamp(one["until"], UTC).strftime("%Y-%m-%d %H:%M")
        due = f"{one['due']}{' or more' if one['more'] else ''}"
        table.add_row(Text(one["tenant"]), one["part"], f"{one['days']:g}", until, due)
    Console().print(table if planned else "no tenant keeps anything for a time only")


@app.command()
def run(as_json: Json = False) -> None:
    """Clear all that is due now, as gateways and judges do from time to time."""

    async def work(database: Database) -> dict[str, Any] | None:
        done = await _retention(database).run()
        return None if done is None else asdict(done)

    done = on_database(work, application=_NAME)
    if done is None:
        raise Conflict("another process is clearing at this moment")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(done), indent=2))
        return
    for part, count in done["turns"].items():
        say(f"{part}: {count} turns")
    say(f"{done['dropped']} turns were dropped from training for it; {done['seconds']:g} s")
    for part in done["waiting"]:
        say(f"{part}: the rest waits for turns that are judged or trained on yet")


def _retention(database: Database) -> Retention:
    from gateway.store.retention import Retention

    if database.revision < "0003":
        raise Conflict("the database is of an earlier release: run `nextstate migrate` first")
    return Retention(database, local_settings().retention)
