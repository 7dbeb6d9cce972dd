"""`nextstate keys`: API keys of the database in reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import msgspec
import typer
from rich.console import Console

from gateway.cli.terminal import local_settings, say
from gateway.errors import NotFound
from gateway.records import Role

if TYPE_CHECKING:
    from gateway.store.database import Database

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="API keys.")


@app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="For people.")],
    role: Annotated[Role, typer.Option()] = Role.AGENT,
    tenant: Annotated[str, typer.Option(help="Made where it is new.")] = "default",
    lineage: Annotated[str, typer.Option(help="The policy that serves and trains it.")] = "default",
    capture: Annotated[bool, typer.Option(help="Store its turns.")] = True,
) -> None:
    """Make a key and print its secret, which is not shown again."""
    from gateway.store.keys import KeyStore
    from gateway.store.lineages import LineageStore

    async def create(database: Database) -> str:
        found = await LineageStore(database).named(lineage)
        if found is None:
            raise NotFound(f"there is no lineage {lineage!r}")
        keys = KeyStore(database)
        tenant_id = await keys.ensure_tenant(tenant)
        _, secret = await keys.create(tenant_id, name, role, found.id, capture=capture)
        return secret

    typer.echo(_on_database(create))


@app.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show all keys; of their secrets only the first characters are known."""
    from gateway.store.keys import KeyStore

    found = _on_database(lambda database: KeyStore(database).listed())
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        from gateway.local.screen import keys_table

        Console().print(keys_table(found))


@app.command("revoke")
def revoke_key(
    key: Annotated[UUID, typer.Argument(help="Its id, as `keys list` shows it.")],
) -> None:
    """Refuse a key from now on."""
    from gateway.store.keys import KeyStore

    if not _on_database(lambda database: KeyStore(database).revoke(key)):
        raise NotFound(f"no valid key has the id {key}")
    say("revoked")


def _on_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Do something on the database in reach."""
    from gateway.local.access import database_url
    from gateway.store.database import Database

    settings = local_settings()

    async def run() -> T:
        url = database_url(settings)
        database = await Database.open(settings.database, url, application="nextstate-keys")
        try:
            await database.check_revision()
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())
