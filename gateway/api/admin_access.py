"""Who may do what through the admin API.

An admin key reads and changes what is its tenant's. Those of the operators' tenant
(`gateway.operators`) also make tenants, set what concerns all of them, and manage the keys of any;
they read no conversation but their own tenant's: who needs to makes a key there, which is on
record. A lineage that several tenants use is moved and paused by operators alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from fastapi import Request

from gateway.api.auth import require_admin
from gateway.api.services import Services
from gateway.errors import Conflict, NotFound, PermissionDenied
from gateway.records import Principal
from gateway.store.changes import Change, log_change
from gateway.store.lineage_use import is_shared
from gateway.store.moves import PolicyMoves
from gateway.store.once import Once

Ask = Callable[[Request], Awaitable[Principal]]


def asker(services: Services) -> Ask:
    """Who asks, as a dependency of routes: the holder of an admin key."""

    async def admin(request: Request) -> Principal:
        return await require_admin(services.keys, request.headers)

    return admin


def changer(services: Services) -> Ask:
    """The same for a change, of which a row is kept."""
    ask = asker(services)

    async def admin(request: Request) -> Principal:
        who = await ask(request)
        if services.database.revision < "0003":
            raise Conflict("The database is of an earlier release: run `nextstate migrate` first.")
        return who

    return admin


def operator(services: Services) -> Ask:
    """The same of the operators' tenant. Raises PermissionDenied for others."""
    change = changer(services)

    async def admin(request: Request) -> Principal:
        who = await change(request)
        if not is_operator(services, who):
            raise PermissionDenied("Only an operator's admin key may do this.")
        return who

    return admin


def is_operator(services: Services, who: Principal) -> bool:
    return bool(who.tenant) and who.tenant == services.settings.gateway.operators


def tenant_of(services: Services, who: Principal, tenant_id: UUID | None) -> UUID:
    """The tenant that is meant: one's own, or for operators any. Raises NotFound."""
    if tenant_id is None or tenant_id == who.tenant_id:
        return who.tenant_id
    if not is_operator(services, who):
        raise NotFound("There is no such tenant.")
    return tenant_id


async def lineage_to_move(services: Services, who: Principal, name: str) -> UUID:
    """The lineage of a name, which the asker may move: one's tenant's own, for operators any.

    Raises NotFound for one that the tenant does not use, PermissionDenied for one that others use
    too.
    """
    moves = PolicyMoves(services.database)
    if is_operator(services, who):
        return await moves.lineage(name)
    found = await moves.lineage(name, who.tenant_id)
    if await is_shared(services.database, found, who.tenant_id):
        raise PermissionDenied(
            f"Other tenants use the lineage {name!r} too: only an operator's admin key may do this."
        )
    return found


def change(
    who: Principal,
    action: str,
    target: object,
    *,
    tenant_id: UUID | None = None,
    marked: Once | None = None,
    **detail: object,
) -> Change:
    """A change that somebody asks for, as it is noted."""
    whose = who.tenant_id if tenant_id is None else tenant_id
    return Change(
        who=who, action=action, target=str(target), tenant_id=whose, detail=detail, once=marked
    )


async def once(request: Request, who: Principal) -> Once | None:
    """What the request is marked with, if it is: its method, address and body go with the name."""
    key = request.headers.get("idempotency-key")
    if not key:
        return None
    asked = f"{request.method} {request.url.path}?{request.url.query}\n"
    return Once.of(who.tenant_id, key, asked.encode("utf-8", "replace") + await request.body())


def told(made: Change) -> None:
    """Log a change that keeps an entry of its own; `note_change` does for all others."""
    log_change(made)
