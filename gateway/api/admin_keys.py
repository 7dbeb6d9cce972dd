"""The admin REST API for API keys: made, listed, rotated, changed and revoked."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from gateway.api import shapes
from gateway.api.admin_access import asker, change, changer, is_operator, once, tenant_of
from gateway.api.admin_answer import answer, expected, made
from gateway.api.admin_query import (
    Body,
    Cursor,
    Id,
    IdempotencyKey,
    IfMatch,
    KeyLimits,
    Limit,
    Name,
    Word,
)
from gateway.api.services import Services
from gateway.records import Principal, Role
from gateway.store.key_records import KeyRecords, State
from gateway.store.moves import PolicyMoves

#: Seconds since the epoch, before the year 2100.
Until = Annotated[float, Field(ge=0, le=4_102_444_800, allow_inf_nan=False)]
#: A whole month, after which nothing can depend on the old key any more.
_LONGEST_GRACE_S = 31 * 86_400
_HOUR_S = 3600.0


class KeySampling(Body):
    """What is sampled with in place of what clients ask for, on captured main-line turns."""

    temperature: float | None = Field(None, gt=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)


def _stays(nothing: Any) -> Any:
    """A field that need not be named and cannot be null; what stands for it is not read."""
    return Field(default_factory=lambda: nothing)


class KeyChange(Body):
    """What is not named stays as it is; `limits`, `sampling` and `expires_at` may be null.

    `limits` hold within those that operators set: in the settings file for each key, and for all
    keys of the tenant together.
    """

    name: Name = _stays("")
    capture: bool = _stays(True)
    on_stale: Literal["serve", "reject"] = _stays("serve")
    sampling: KeySampling | None = None
    limits: KeyLimits | None = None
    expires_at: Until | None = None

    def values(self) -> dict[str, Any]:
        """What was named, as it is stored."""
        found = self.model_dump(exclude_unset=True, include=set(KeyChange.model_fields))
        for name in ("limits", "sampling"):
            if given := found.get(name):
                found[name] = {key: one for key, one in given.items() if one is not None} or None
        return found


class KeyCreate(KeyChange):
    """`lineage` is the policy that serves and trains it; of operators, `tenant_id` may be any."""

    name: Name
    role: Annotated[Role, Field(strict=False)] = Role.AGENT
    lineage: Name = "default"
    tenant_id: Id | None = None


class KeyRotate(Body):
    """How long the old key is still taken; 0 ends it at once."""

    grace_s: float = Field(_HOUR_S, ge=0, le=_LONGEST_GRACE_S, allow_inf_nan=False)


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/keys", tags=["keys"])
    records = KeyRecords(services.database, services.keys)
    moves = PolicyMoves(services.database)
    made_or_there = shapes.created(shapes.NewKey) | shapes.ok(shapes.Key)
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806

    def shown(request: Request, found: dict[str, Any], secret: str | None) -> Response:
        if secret is None:
            return answer(request, found)
        return made(found, secret=secret, at=f"/admin/v1/keys/{found['id']}")

    @router.get("", responses=shapes.ok(shapes.KeyPage))
    async def keys(  # noqa: PLR0917 - its parameters are the query's
        request: Request,
        who: Admin,
        cursor: Cursor = None,
        limit: Limit = 50,
        name: Word = None,
        role: Role | None = None,
        state: State | None = None,
        tenant_id: UUID | None = None,
    ) -> Response:
        """Keys of the tenant, the newest first. Of a secret, `hint` is all that is known."""
        whose = tenant_of(services, who, tenant_id)
        found = await records.page(
            whose, cursor=cursor, limit=limit, name=name, role=role, state=state
        )
        return answer(request, found)

    @router.post("", status_code=201, responses=made_or_there)
    async def create_key(
        request: Request,
        who: Changer,
        body: KeyCreate,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Make a key. Its `secret` is in this answer and nowhere else.

        The lineage must be one that the tenant uses already; operators may name any. What is sent
        again with its `Idempotency-Key` is answered 200, with the key and without its secret: who
        has lost that rotates the key.
        """
        whose = tenant_of(services, who, body.tenant_id)
        await services.tenants.one(whose)
        seen_by = None if is_operator(services, who) else whose
        lineage_id = await moves.lineage(body.lineage, seen_by)
        mark = await once(request, who)
        wanted = change(who, "key_created", "", tenant_id=whose, marked=mark, role=body.role.value)
        found, secret = await records.create(wanted, lineage_id, body.role, body.values())
        return shown(request, found, secret)

    @router.get("/{key_id}", responses=shapes.ok(shapes.Key))
    async def key(
        request: Request, who: Admin, key_id: UUID, tenant_id: UUID | None = None
    ) -> Response:
        """One key."""
        return answer(request, await records.one(tenant_of(services, who, tenant_id), key_id))

    @router.patch("/{key_id}", responses=shapes.ok(shapes.Key))
    async def change_key(  # noqa: PLR0917
        request: Request,
        who: Changer,
        key_id: UUID,
        body: KeyChange,
        if_match: IfMatch = None,  # noqa: ARG001 - for the document
        tenant_id: UUID | None = None,
    ) -> Response:
        """Change what is named. Every gateway goes by it within 5 s."""
        wanted = change(who, "key_changed", key_id, tenant_id=tenant_of(services, who, tenant_id))
        found = await records.change(wanted, key_id, body.values(), expected(request))
        return answer(request, found)

    @router.post("/{key_id}/rotate", status_code=201, responses=made_or_there)
    async def rotate_key(  # noqa: PLR0917
        request: Request,
        who: Changer,
        key_id: UUID,
        body: KeyRotate | None = None,
        if_match: IfMatch = None,  # noqa: ARG001
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001
        tenant_id: UUID | None = None,
    ) -> Response:
        """Make a key like this one, which itself ends after the grace. 409 if it has ended.

        What is sent again with its `Idempotency-Key` is answered 200, with the new key and without
        its secret.
        """
        whose, mark = tenant_of(services, who, tenant_id), await once(request, who)
        wanted = change(who, "key_rotated", key_id, tenant_id=whose, marked=mark)
        grace_s = (body or KeyRotate()).grace_s
        found, secret = await records.rotate(wanted, key_id, grace_s, expected(request))
        return shown(request, found, secret)

    @router.post("/{key_id}/revoke", responses=shapes.ok(shapes.Key))
    async def revoke_key(
        request: Request,
        who: Changer,
        key_id: UUID,
        if_match: IfMatch = None,  # noqa: ARG001
        tenant_id: UUID | None = None,
    ) -> Response:
        """Refuse a key, everywhere within 5 s. One that is revoked stays so."""
        wanted = change(who, "key_revoked", key_id, tenant_id=tenant_of(services, who, tenant_id))
        found = await records.revoke(wanted, key_id, expected(request))
        return answer(request, found)

    return router
