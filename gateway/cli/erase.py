"""`nextstate erase`: a session, or all that is stored of a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
import typer

from gateway.cli.database import on_database
from gateway.cli.terminal import say
from gateway.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.store.database import Database
    from gateway.store.erasure import Erased, Erasure

app = typer.Typer(no_args_is_help=True, help="Erase a session, or all that is stored of a user.")

Tenant = Annotated[str, typer.Option(help="Whose session or user it is.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]

_TENANT = "SELECT id FROM tenants WHERE name = $1"


@app.command("session")
def erase_session(
    session: Annotated[str, typer.Argument(help="Its id, or its client's name for it.")],
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Erase a session, and those that it called, from every table."""
    from gateway.store.audit import CLI
    from gateway.store.feedback import FeedbackStore

    async def erase(database: Database, erasure: Erasure, tenant_id: UUID) -> Erased | None:
        session_id = await FeedbackStore(database).session(tenant_id, session)
        if session_id is None:
            try:
                session_id = UUID(session)
            except ValueError:
                return None
        return await erasure.session(tenant_id, session_id, CLI)

    _run(tenant, erase, as_json=as_json)


@app.command("user")
def erase_user(
    end_user: Annotated[str, typer.Argument(help="As requests named him.")],
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Erase all sessions of a user from every table."""
    from gateway.store.audit import CLI

    async def erase(_: Database, erasure: Erasure, tenant_id: UUID) -> Erased:
        return await erasure.user(tenant_id, end_user, CLI)

    _run(tenant, erase, as_json=as_json)


def _run(
    tenant: str,
    erase: Callable[[Database, Erasure, UUID], Awaitable[Erased | None]],
    *,
    as_json: bool,
) -> None:
    async def work(database: Database) -> Erased:
        from gateway.store.erasure import Erasure

        if database.revision < "0003":
            raise Conflict("the database is of an earlier release: run `nextstate migrate` first")
        tenant_id = await database.fetchval(_TENANT, tenant)
        if tenant_id is None:
            raise NotFound(f"there is no tenant {tenant!r}")
        found = await erase(database, Erasure(database), tenant_id)
        if found is None:
            raise NotFound("there is no such session, and none of that id was erased")
        return found

    erased = on_database(work, application="nextstate-erase")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(asdict(erased)), indent=2))
        return
    say(f"erased {erased.sessions} sessions; the audit entry is {erased.entry_id}")
    for table, count in sorted(erased.rows.items()):
        typer.echo(f"{table:12} {count}")
    for one in erased.versions:
        typer.echo(f"version {one['version']} of {one['lineage']} was trained on some of it")
