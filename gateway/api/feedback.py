"""What agents and people say of a turn outside the conversation, and that a session is over."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel

from gateway.api.auth import authenticate
from gateway.api.feedback_body import (
    FeedbackBody,
    FeedbackStored,
    SessionFeedbackBody,
    SessionFeedbackStored,
)
from gateway.api.feedback_desk import FeedbackDesk
from gateway.api.services import Services
from gateway.store.feedback import FeedbackStore

Key = Annotated[str | None, Header(max_length=200)]


class SessionEnded(BaseModel):
    """`ended`: whether the session was still open."""

    id: UUID
    ended: bool


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["feedback"])
    desk = FeedbackDesk(FeedbackStore(services.database), services.writer, services.redactor)

    @router.post("/turns/{turn_id}/feedback", status_code=HTTPStatus.ACCEPTED)
    async def give_feedback(
        turn_id: str, body: FeedbackBody, request: Request, idempotency_key: Key = None
    ) -> FeedbackStored:
        """Store feedback and, in the same transaction, queue a judgement with it.

        The turn is named by its id, or by that of the completion, response or message it gave.
        """
        principal = await authenticate(services.keys, request.headers)
        return await desk.of_turn(principal.tenant_id, turn_id, body, idempotency_key)

    @router.post("/sessions/{session_id:path}/feedback", status_code=HTTPStatus.ACCEPTED)
    async def give_session_feedback(
        session_id: str, body: SessionFeedbackBody, request: Request, idempotency_key: Key = None
    ) -> SessionFeedbackStored:
        """Spread feedback over the main-line turns of a session, and queue their judgements.

        The session is named by its id, or by the name that its client gave it. The rewards of
        environments come in here.
        """
        principal = await authenticate(services.keys, request.headers)
        return await desk.of_session(principal.tenant_id, session_id, body, idempotency_key)

    @router.post("/sessions/{session_id:path}/end")
    async def end_session(session_id: str, request: Request) -> SessionEnded:
        """Close a session now; its last turn will have no next state.

        The session is named by its id, or by the name that its client gave it.
        """
        principal = await authenticate(services.keys, request.headers)
        found = await desk.session(principal.tenant_id, session_id)
        ended = await services.turns.end_session(principal.tenant_id, found, "ended_by_api")
        return SessionEnded(id=found, ended=ended)

    return router
