"""`nextstate policy`: versions of a lineage, and moving from one to another.

Through Postgres, which gateways and trainers follow: it works whether or not a trainer runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.database import on_database
from gateway.cli.terminal import say

if TYPE_CHECKING:
    from gateway.store.database import Database
    from gateway.store.moves import Moved, PolicyMoves

_NAME = "nextstate-policy"
_COLOURS = {"live": "green", "canary": "cyan", "rolled_back": "red", "refused": "red"}

app = typer.Typer(no_args_is_help=True, help="Versions of the policy: see, promote, take back.")

Lineage = Annotated[str, typer.Option(help="Whose versions.")]
Reason = Annotated[str, typer.Option(help="Kept with the version and in the events.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Version = Annotated[int, typer.Argument(min=0)]


@app.command("list")
def list_versions(
    lineage: Lineage = "default",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: Json = False,
) -> None:
    """Show versions, the newest first, with what their gates found."""

    async def read(database: Database) -> dict[str, Any]:
        from gateway.store.moves import PolicyMoves

        moves = PolicyMoves(database)
        return await moves.listed(await moves.lineage(lineage), limit)

    found = on_database(read, application=_NAME)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        Console().print(_table(lineage, found))


@app.command()
def promote(
    version: Version,
    lineage: Lineage = "default",
    reason: Reason = "asked for on the command line",
    as_json: Json = False,
) -> None:
    """Make the canary live now, or again a version that was rolled back."""
    _move(
        lineage,
        lambda moves, found: moves.promote(found, version, reason=reason),
        as_json=as_json,
    )


@app.command()
def rollback(
    version: Annotated[
        int | None, typer.Argument(min=0, help="Default: the canary, else the live version.")
    ] = None,
    to: Annotated[
        int | None, typer.Option(min=0, help="What to go back to; default: the one before.")
    ] = None,
    lineage: Lineage = "default",
    reason: Reason = "asked for on the command line",
    as_json: Json = False,
) -> None:
    """Take a version back, and all that was trained from it; its samples are quarantined."""
    _move(
        lineage,
        lambda moves, found: moves.rollback(found, version, to=to, reason=reason),
        as_json=as_json,
    )


@app.command()
def pin(
    version: Version,
    lineage: Lineage = "default",
    reason: Reason = "asked for on the command line",
    as_json: Json = False,
) -> None:
    """Keep the live version: nothing is promoted or rolled back until it is unpinned."""
    _move(lineage, lambda moves, found: moves.pin(found, version, reason=reason), as_json=as_json)


@app.command()
def unpin(
    lineage: Lineage = "default",
    reason: Reason = "asked for on the command line",
    as_json: Json = False,
) -> None:
    """Let versions be promoted and rolled back again."""
    _move(lineage, lambda moves, found: moves.unpin(found, reason=reason), as_json=as_json)


def _move(
    lineage: str, work: Callable[[PolicyMoves, UUID], Awaitable[Moved]], *, as_json: bool
) -> None:
    async def run(database: Database) -> Moved:
        from gateway.store.moves import PolicyMoves

        moves = PolicyMoves(database)
        return await work(moves, await moves.lineage(lineage))

    moved = on_database(run, application=_NAME)
    if as_json:
        typer.echo(msgspec.json.encode({"lineage": lineage, **asdict(moved)}).decode())
        return
    standing = f"version {moved.live_version} of {lineage} is live"
    if moved.pinned_version is not None:
        standing += " and pinned"
    if not moved.changed:
        say(f"nothing to do: {standing}")
        return
    say(standing)
    if moved.undone:
        versions = ", ".join(map(str, moved.undone))
        say(f"undone: {versions}; {moved.quarantined} samples quarantined")


def _table(lineage: str, found: dict[str, Any]) -> Table:
    pinned = found["pinned_version"]
    title = f"{lineage}: version {found['live_version']} is live"
    table = Table(
        title=title if pinned is None else f"{title} and pinned",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for column in ("version", "parent", "state", "served since", "gate", "judged", "score", "why"):
        table.add_column(column, overflow="fold")
    for row in found["versions"]:
        gate = row["gate"] or {}
        since = row["live_at"]
        change = gate.get("score_change")
        table.add_row(
            str(row["version"]),
            "" if row["parent_version"] is None else str(row["parent_version"]),
            Text(row["state"], style=_COLOURS.get(row["state"], "")),
            "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%F %T"),
            str(gate.get("state", "")),
            str(gate.get("judged", "")),
            "" if change is None else f"{change:+.3f}",
            Text(str(row["reason"] or gate.get("reason", ""))),
        )
    return table
