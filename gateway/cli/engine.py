"""`nextstate engine`: drain an engine before it is stopped, and resume it.

Through Postgres, which gateways follow.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.database import on_database
from gateway.cli.terminal import say
from gateway.errors import NotFound, StackError

if TYPE_CHECKING:
    from gateway.store.database import Database

_NAME = "nextstate-engine"
#: A gateway that is alive reports every second.
_ALIVE_S, _LOOK_S = 15.0, 0.5

app = typer.Typer(no_args_is_help=True, help="Engines: see, drain, resume.")

Name = Annotated[str, typer.Argument(help="As the settings of the gateways name it.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("list")
def list_engines(*, as_json: Json = False) -> None:
    """Show the engines of all gateways, which of them drain, and their requests."""
    found = on_database(_standings, application=_NAME)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        Console().print(_table(found))


@app.command()
def drain(
    name: Name,
    *,
    reason: Annotated[str, typer.Option(help="Shown to operators.")] = "",
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until no request is left there.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Send an engine no new request; what runs there ends there. It may be stopped once drained."""

    async def work(database: Database) -> dict[str, Any]:
        from gateway.store.drains import DrainStore

        if not (await _standing(database, name))["gateways"]:
            raise NotFound(f"no gateway that runs has an engine {name!r}")
        await DrainStore(database).drain(name, reason)
        return await _drained(database, name, wait)

    found = on_database(work, application=_NAME)
    _tell(found, as_json=as_json)
    if wait and not found["drained"]:
        raise StackError(f"engine {name!r} has {found['requests']} requests left after {wait:g} s")


@app.command()
def resume(name: Name, *, as_json: Json = False) -> None:
    """Send an engine requests again. Its sessions come back."""

    async def work(database: Database) -> dict[str, Any]:
        from gateway.store.drains import DrainStore

        before = await _standing(database, name)
        if not before["gateways"] and not before["draining"]:
            raise NotFound(f"no gateway that runs has an engine {name!r}, and it does not drain")
        await DrainStore(database).resume(name)
        return await _standing(database, name)

    _tell(on_database(work, application=_NAME), as_json=as_json)


async def _standings(database: Database) -> list[dict[str, Any]]:
    from gateway.store.drains import DrainStore, standing
    from gateway.store.workers import Workers

    drains = await DrainStore(database).read()
    return standing(drains, await Workers(database).alive("gateway", _ALIVE_S))


async def _standing(database: Database, name: str) -> dict[str, Any]:
    from gateway.store.drains import engine_standing

    found = {one["name"]: one for one in await _standings(database)}
    return found.get(name) or engine_standing(name, None, [])


async def _drained(database: Database, name: str, wait_s: float) -> dict[str, Any]:
    """How the engine stands once it is drained, or when the time is over."""
    end = asyncio.get_running_loop().time() + wait_s
    while True:
        found = await _standing(database, name)
        if found["drained"] or asyncio.get_running_loop().time() >= end:
            return found
        await asyncio.sleep(_LOOK_S)


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    say(f"{found['name']}: {_state(found)}")


def _state(found: dict[str, Any]) -> str:
    if found["drained"]:
        return "drained: no gateway sends it requests, and none is left"
    if found["draining"]:
        return f"draining, {found['requests']} requests left"
    return f"serves, {found['requests']} requests"


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "state", "gateways", "why"):
        table.add_column(column, overflow="fold")
    for one in found:
        at = one["gateways"]
        answers = f"answers {sum(place['healthy'] for place in at)} of {len(at)}"
        table.add_row(Text(one["name"]), _state(one), answers, Text(one["reason"] or ""))
    return table
