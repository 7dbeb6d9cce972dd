"""The admin REST API for tenants. Operators make and see all of them, others see their own."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import (
    asker,
    change,
    changer,
    is_operator,
    once,
    operator,
    tenant_of,
)
from gateway.api.admin_answer import answer, expected, made
from gateway.api.admin_query import Body, Cursor, IdempotencyKey, IfMatch, Limit, Name, Word
from gateway.api.services import Services
from gateway.api.tenant_settings import OF_OPERATORS, TenantSettings, merged
from gateway.errors import PermissionDenied
from gateway.records import Principal


class TenantCreate(Body):
    """A name that no tenant has yet."""

    name: Name


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/tenants", tags=["tenants"])
    tenants = services.tenants
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806
    Operator = Annotated[Principal, Depends(operator(services))]  # noqa: N806

    @router.get("", responses=shapes.ok(shapes.TenantPage))
    async def list_tenants(
        request: Request, who: Admin, cursor: Cursor = None, limit: Limit = 50, name: Word = None
    ) -> Response:
        """Tenants, the newest first: the asker's own, for operators all."""
        only = None if is_operator(services, who) else who.tenant_id
        return answer(request, await tenants.page(only, cursor=cursor, limit=limit, name=name))

    @router.post("", status_code=201, responses=shapes.created(shapes.Tenant))
    async def create_tenant(
        request: Request,
        who: Operator,
        body: TenantCreate,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Make a tenant. Its first key is made with its id at `/keys`. 409 if there is one.

        What is sent again with its `Idempotency-Key` is answered with the tenant that it made.
        """
        wanted = change(who, "tenant_created", body.name, marked=await once(request, who))
        found = await tenants.create(wanted, body.name)
        return made(found, at=f"/admin/v1/tenants/{found['id']}")

    @router.get("/{tenant_id}", responses=shapes.ok(shapes.Tenant))
    async def tenant(request: Request, who: Admin, tenant_id: UUID) -> Response:
        """One tenant with its settings."""
        return answer(request, await tenants.one(tenant_of(services, who, tenant_id)))

    @router.patch("/{tenant_id}/settings", responses=shapes.ok(shapes.Tenant))
    async def change_settings(
        request: Request,
        who: Changer,
        tenant_id: UUID,
        body: TenantSettings,
        if_match: IfMatch = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Set the sections that are named; null takes one away, the others stay (RFC 7396).

        `limits` are set by operators alone (403 else). Gateways go by them within 5 s.
        """
        whose = tenant_of(services, who, tenant_id)
        given = body.sections()
        if OF_OPERATORS & {*given} and not is_operator(services, who):
            raise PermissionDenied("Only an operator's admin key may set these.")

        def merge(stored: Mapping[str, Any]) -> Mapping[str, Any]:
            return merged(stored, given)

        wanted = change(who, "tenant_changed", whose, tenant_id=whose, sections=sorted(given))
        found = await tenants.change(wanted, merge, expected(request))
        return answer(request, found)

    return router
