"""`nextstate keys`: API keys of the database in reach."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
import typer
from rich.console import Console

from gateway.cli.database import on_database
from gateway.cli.terminal import local_settings, say
from gateway.errors import NotFound
from gateway.records import Role

if TYPE_CHECKING:
    from gateway.store.database import Database

_NAME = "nextstate-keys"


class OnStale(StrEnum):
    """What a key's requests for new sessions get while training is behind."""

    SERVE = "serve"
    REJECT = "reject"


app = typer.Typer(no_args_is_help=True, help="API keys.")


@app.command("create")
def create_key(
    *,
    name: Annotated[str, typer.Argument(help="For people.")],
    role: Annotated[Role, typer.Option()] = Role.AGENT,
    tenant: Annotated[str, typer.Option(help="Made where it is new.")] = "default",
    lineage: Annotated[str, typer.Option(help="The policy that serves and trains it.")] = "default",
    capture: Annotated[bool, typer.Option(help="Store its turns.")] = True,
    on_stale: Annotated[
        OnStale | None,
        typer.Option(
            help="Whether new sessions are turned away while training is behind; rollout keys are."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Id and secret, for programs.")] = False,
) -> None:
    """Make a key and print its secret, which is not shown again.

    The lineage `default` is made with the first key where there is none.
    """
    from gateway.cli.first_key import DEFAULT, default_lineage
    from gateway.store.keys import KeyStore
    from gateway.store.lineages import LineageStore

    async def create(database: Database) -> tuple[UUID, str]:
        if lineage == DEFAULT:
            lineage_id = await default_lineage(local_settings(), database)
        elif (found := await LineageStore(database).named(lineage)) is not None:
            lineage_id = found.id
        else:
            raise NotFound(f"there is no lineage {lineage!r}")
        keys = KeyStore(database)
        tenant_id = await keys.ensure_tenant(tenant)
        return await keys.create(
            tenant_id,
            name,
            role,
            lineage_id,
            capture=capture,
            on_stale=on_stale.value if on_stale else None,
        )

    key_id, secret = on_database(create, application=_NAME)
    typer.echo(json.dumps({"id": str(key_id), "secret": secret}) if as_json else secret)


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
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Refuse a key from now on."""
    from gateway.store.keys import KeyStore

    if not on_database(lambda database: KeyStore(database).revoke(key), application=_NAME):
        raise NotFound(f"no valid key has the id {key}")
    say("revoked")
    if as_json:
        typer.echo(json.dumps({"id": str(key), "revoked": True}))
