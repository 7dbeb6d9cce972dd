"""The admin REST API that acts on what is stored: sessions are closed, turns judged again."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from gateway.api import shapes
from gateway.api.admin_access import change, changer, once
from gateway.api.admin_answer import answer
from gateway.api.admin_query import Body, IdempotencyKey, TurnsChosen
from gateway.api.services import Services
from gateway.errors import NotFound
from gateway.records import Principal
from gateway.store.changes import note_change
from gateway.store.turn_filters import TurnFilters
from gateway.store.turn_list import TurnList

#: Turns that one request queues at most.
_MOST_QUEUED = 1000


class Rejudge(Body, TurnsChosen):
    """Which turns, the newest first, and how many of them at most."""

    limit: int = Field(100, ge=1, le=_MOST_QUEUED)


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["actions"])
    turns = TurnList(services.database)
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806 - a type

    async def rejudged(
        request: Request, who: Principal, what: object, filters: TurnFilters, limit: int
    ) -> Response:
        wanted = change(who, "turns_rejudged", what, marked=await once(request, who))
        queued = await turns.rejudge(wanted, filters, limit)
        return answer(request, asdict(queued))

    @router.post("/sessions/{session_id}/close", responses=shapes.ok(shapes.Closed))
    async def close_session(request: Request, who: Changer, session_id: UUID) -> Response:
        """End a session now; its last turn will have no next state. One that ended stays so."""
        if not await services.admin.has_session(who.tenant_id, session_id):
            raise NotFound("There is no such session.")
        closed = await services.turns.end_session(who.tenant_id, session_id, "ended_by_api")
        if closed:
            wanted = change(who, "session_closed", session_id)
            async with services.database.acquire() as connection:
                await note_change(connection, wanted)
        return answer(request, {"id": session_id, "closed": closed})

    @router.post("/sessions/{session_id}/rejudge", responses=shapes.ok(shapes.Queued))
    async def rejudge_session(
        request: Request,
        who: Changer,
        session_id: UUID,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Judge a session's turns once more, the newest 1000. What waits already is not doubled.

        What is sent again with its `Idempotency-Key` does nothing, and is answered as it was.
        """
        filters = TurnFilters(session_id=session_id)
        return await rejudged(request, who, session_id, filters, _MOST_QUEUED)

    @router.post("/turns/{turn_id}/rejudge", responses=shapes.ok(shapes.Queued))
    async def rejudge_turn(
        request: Request,
        who: Changer,
        turn_id: UUID,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001
    ) -> Response:
        """Judge one turn once more. Side calls are not judged."""
        return await rejudged(request, who, turn_id, TurnFilters(turn_id=turn_id), 1)

    @router.post("/rejudge", responses=shapes.ok(shapes.Queued))
    async def rejudge(
        request: Request,
        who: Changer,
        body: Rejudge,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001
    ) -> Response:
        """Judge the turns that fit once more. `more` says that others fit too."""
        return await rejudged(request, who, "turns", body.filters(), body.limit)

    return router
