"""The admin REST API that pauses and resumes capture, judging and training.

Gateways, judges and trainers follow within `LOOK_S`, mostly at once. What is in hand is finished:
a turn that is being sampled is stored, a turn that is being judged gets its verdict, a step that
has begun ends in a version.
"""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import asker, change, changer, lineage_to_move, tenant_of
from gateway.api.admin_answer import answer
from gateway.api.admin_query import LineageName, Reason
from gateway.api.services import Services
from gateway.records import Principal
from gateway.store.overview import lineages_of
from gateway.store.pauses import Paused, Pauses, PauseStore


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["pauses"])
    pauses = PauseStore(services.database)
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806

    async def listed(request: Request, whose: UUID, found: Pauses) -> Response:
        lineages = await lineages_of(services.database, whose)
        return answer(request, {"items": found.told(whose, lineages)})

    async def subject_of(who: Principal, whose: UUID, what: Paused, lineage: str) -> UUID:
        if what is Paused.TRAINING:
            return await lineage_to_move(services, who, lineage)
        return whose

    @router.get("/pauses", responses=shapes.ok(shapes.Pauses))
    async def list_pauses(request: Request, who: Admin, tenant_id: UUID | None = None) -> Response:
        """What is paused of the tenant and of the lineages that it uses."""
        whose = tenant_of(services, who, tenant_id)
        return await listed(request, whose, await pauses.read())

    @router.post("/{what}/pause", responses=shapes.ok(shapes.Pauses))
    async def pause(  # noqa: PLR0917 - its parameters are the query's
        request: Request,
        who: Changer,
        what: Paused,
        lineage: LineageName = "default",
        reason: Reason = "",
        tenant_id: UUID | None = None,
    ) -> Response:
        """Pause capture or judging of the tenant, or training of a lineage that it alone uses.

        Operators pause training of any lineage. What is paused already stays so. While capture is
        paused, requests are served and nothing of them is stored; while judging or training is,
        turns wait, and are taken up on resuming as far as they are still fresh.
        """
        whose = tenant_of(services, who, tenant_id)
        subject = await subject_of(who, whose, what, lineage)
        wanted = change(who, f"{what.value}_paused", subject, tenant_id=whose, reason=reason)
        found = await pauses.pause(wanted, what, subject, reason)
        await services.pauses.refresh()
        return await listed(request, whose, found)

    @router.post("/{what}/resume", responses=shapes.ok(shapes.Pauses))
    async def resume(
        request: Request,
        who: Changer,
        what: Paused,
        lineage: LineageName = "default",
        tenant_id: UUID | None = None,
    ) -> Response:
        """Go on with what was paused; where nothing was, nothing changes."""
        whose = tenant_of(services, who, tenant_id)
        subject = await subject_of(who, whose, what, lineage)
        wanted = change(who, f"{what.value}_resumed", subject, tenant_id=whose)
        found = await pauses.resume(wanted, what, subject)
        await services.pauses.refresh()
        return await listed(request, whose, found)

    return router
