"""The admin REST API: whether all of it runs, what happened, and who changed what."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import asker
from gateway.api.admin_answer import answer
from gateway.api.admin_query import Cursor, Limit, Moment, Word
from gateway.api.services import Services
from gateway.records import Principal
from gateway.store import ledger
from gateway.store.audit_list import audit

_ALIVE_S = 15.0
EventCursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$")]


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["operating"])
    reads = services.admin
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type

    @router.get("/status", responses=shapes.ok(shapes.Status))
    async def status(request: Request, who: Admin, since: Moment = None) -> Response:
        """Lineages with their live versions, waiting jobs, workers alive, and what is paused.

        The funnel counts turns made `since`, or all of them.
        """
        found = await reads.status(who.tenant_id)
        found["funnel"] = await reads.funnel(who.tenant_id, since)
        for lineage in found["lineages"]:
            lineage["admission"] = services.admitter.describe(lineage["id"])
        found["engines"] = services.pool.describe()
        found["spooling"] = services.writer.spooling
        lineages = {lineage["id"] for lineage in found["lineages"]}
        found["paused"] = services.pauses.current.told(who.tenant_id, lineages)
        return answer(request, found)

    @router.get("/workers", responses=shapes.ok(shapes.Workers))
    async def workers(request: Request, who: Admin) -> Response:
        """Processes that reported in the last seconds, and how judging goes."""
        return answer(request, {"items": await reads.workers(who.tenant_id, _ALIVE_S)})

    @router.get("/events", responses=shapes.ok(shapes.Events))
    async def events(
        request: Request,
        who: Admin,
        name: Word = None,
        cursor: EventCursor = None,
        limit: Limit = 100,
    ) -> Response:
        """Promotions, refusals and what else happened to the tenant's lineages, latest first."""
        found = await ledger.events(services.database, who.tenant_id, name, cursor, limit)
        return answer(request, found)

    @router.get("/audit", responses=shapes.ok(shapes.Audit))
    async def audited(
        request: Request,
        who: Admin,
        action: Word = None,
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> Response:
        """What was changed of the tenant's and by which key, latest first."""
        return answer(request, await audit(services.database, who.tenant_id, action, cursor, limit))

    return router
