"""What agents and people say of a turn outside the conversation, and that a session is over."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.api.auth import authenticate
from gateway.api.services import Services
from gateway.errors import NotFound
from gateway.records import FeedbackRecord, new_id

_THUMBS = {"up": 1.0, "down": -1.0}


class FeedbackBody(BaseModel):
    """A thumb or a score in [-1, 1], with words if there are any."""

    model_config = ConfigDict(extra="forbid")

    score: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    thumbs: Literal["up", "down"] | None = None
    text: str = Field("", max_length=8192)
    source: str = Field("api", max_length=64, pattern=r"^[\w.:/-]+$")

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if (self.score is None) == (self.thumbs is None):
            raise ValueError("give either score or thumbs")
        return self

    @property
    def value(self) -> float:
        return _THUMBS[self.thumbs] if self.thumbs else self.score or 0.0


class FeedbackStored(BaseModel):
    id: UUID
    turn_id: UUID


class SessionEnded(BaseModel):
    """`ended`: whether the session was still open."""

    id: UUID
    ended: bool


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["feedback"])

    @router.post("/turns/{turn_id}/feedback", status_code=HTTPStatus.ACCEPTED)
    async def give_feedback(
        turn_id: UUID,
        body: FeedbackBody,
        request: Request,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> FeedbackStored:
        """Store feedback and, in the same transaction, queue a judgement with it."""
        principal = await authenticate(services.keys, request.headers)
        if not await services.turns.exists(principal.tenant_id, turn_id):
            raise NotFound("There is no such turn.")
        record = FeedbackRecord(
            id=new_id(),
            tenant_id=principal.tenant_id,
            turn_id=turn_id,
            score=body.value,
            text=body.text,
            source=body.source,
            idempotency_key=idempotency_key,
        )
        await services.writer.commit(record)
        return FeedbackStored(id=record.id, turn_id=turn_id)

    @router.post("/sessions/{session_id}/end")
    async def end_session(session_id: UUID, request: Request) -> SessionEnded:
        """Close a session now; its last turn will have no next state."""
        principal = await authenticate(services.keys, request.headers)
        ended = await services.turns.end_session(principal.tenant_id, session_id, "ended_by_api")
        return SessionEnded(id=session_id, ended=ended)

    return router
