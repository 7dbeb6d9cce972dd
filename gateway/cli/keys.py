"""`nextstate keys`: API keys of the database in reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
import typer
from rich.console import Console

from gateway.cli.database import on_database
from gateway.cli.terminal import say
from gateway.errors import NotFound
from gateway.records import Role

if TYPE_CHECKING:
    from gateway.store.database import Database

_NAME = "nextstate-keys"

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

    typer.echo(on_database(create, application=_NAME))


@app.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show all keys; of their secrets only the first characters are known."""
    from gateway.store.keys import KeyStore

    found = on_database(lambda database: KeyStore(database).listed(), application=_NAME)
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

    if not on_database(lambda database: KeyStore(database).revoke(key), application=_NAME):
        raise NotFound(f"no valid key has the id {key}")
    say("revoked")
