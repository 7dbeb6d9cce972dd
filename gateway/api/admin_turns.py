"""The admin REST API: what is served and captured, turn by turn, and what it led to."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import asker
from gateway.api.admin_answer import answer
from gateway.api.admin_query import Cursor, SessionsAsked, TurnsAsked
from gateway.api.services import Services
from gateway.errors import InvalidRequest, NotFound
from gateway.records import Principal
from gateway.store.explain import explained_turn
from gateway.store.pages import MOST_ROWS
from gateway.store.turn_list import TurnList


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["sessions"])
    reads, listed = services.admin, TurnList(services.database)
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type

    @router.get("/sessions", responses=shapes.ok(shapes.SessionPage))
    async def sessions(
        request: Request, who: Admin, asked: Annotated[SessionsAsked, Query()]
    ) -> Response:
        """Sessions, those seen last first, with turn counts and mean score.

        `name` is the session's id as its client gave it.
        """
        found = await reads.sessions(
            who.tenant_id, cursor=asked.cursor, limit=asked.limit, filters=asked.filters()
        )
        return answer(request, found)

    @router.get("/sessions/{session_id}", responses=shapes.ok(shapes.Session))
    async def session(  # noqa: PLR0917 - its parameters are the query's
        request: Request,
        who: Admin,
        session_id: UUID,
        content: bool = True,
        cursor: Cursor = None,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = MOST_ROWS,
    ) -> Response:
        """One session with its turns, their scores and verdicts; `content=false` hides words.

        Turns come in the order in which they were asked for. Where there are more than `limit`,
        `next` is the `cursor` of the following ones.
        """
        found = await reads.session(
            who.tenant_id, session_id, content=content, cursor=cursor, limit=limit
        )
        if found is None:
            raise NotFound("There is no such session.")
        return answer(request, found)

    @router.get("/turns", responses=shapes.ok(shapes.TurnPage))
    async def turns(
        request: Request, who: Admin, asked: Annotated[TurnsAsked, Query()]
    ) -> Response:
        """Turns without a word of what was said, the newest first, with score and verdict."""
        found = await listed.page(
            who.tenant_id, asked.filters(), cursor=asked.cursor, limit=asked.limit
        )
        return answer(request, found)

    @router.get("/turns/{turn_id}", responses=shapes.ok(shapes.FullTurn))
    async def turn(
        request: Request, who: Admin, turn_id: UUID, content: bool = True, ids: bool = False
    ) -> Response:
        """One turn: messages, reply, next state, judgements, feedback, samples and verdict.

        With `ids` also its token ids and log-probabilities, and the text of each sampled token.
        """
        if ids and not content:
            raise InvalidRequest("ids tell the content: ask for both or neither", param="ids")
        found = await reads.turn(who.tenant_id, turn_id, content=content, ids=ids)
        if found is None:
            raise NotFound("There is no such turn.")
        if ids:
            sampled = found["sampled_ids"]
            found["tokens"] = [services.tokenizer.decode([one]) for one in sampled]
        return answer(request, found)

    @router.get("/turns/{turn_id}/explain", responses=shapes.ok(shapes.Explained))
    async def explain(request: Request, who: Admin, turn_id: UUID) -> Response:
        """Why a turn is where it is and what it is, and why it was trained on or not."""
        return answer(request, await explained_turn(services.database, who.tenant_id, turn_id))

    return router
