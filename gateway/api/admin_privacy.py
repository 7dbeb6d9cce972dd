"""The admin REST API for erasure: of a session, or of all that is stored of a user."""

from dataclasses import asdict
from typing import Annotated, Self
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, model_validator

from gateway.api import shapes
from gateway.api.admin_access import change, changer, tenant_of, told
from gateway.api.admin_answer import expected
from gateway.api.admin_query import NO_NUL, Body, Id, IfMatch
from gateway.api.services import Services
from gateway.api.shapes.privacy import Erased as ErasedShape
from gateway.errors import NotFound
from gateway.records import Principal
from gateway.store.erasure import ACTION, Erased, Erasure

User = Annotated[str, Field(min_length=1, max_length=400, pattern=NO_NUL)]


class ErasureBody(Body):
    """Whose data goes: those of `end_user`, as requests named him, or of one session.

    Of operators, `tenant_id` may be any.
    """

    end_user: User | None = None
    session_id: Id | None = None
    tenant_id: Id | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.end_user is None) == (self.session_id is None):
            raise ValueError("name either end_user or session_id")
        return self


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["privacy"])
    erasure = Erasure(services.database)
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806 - a type

    async def session_gone(who: Principal, tenant_id: UUID, session_id: UUID) -> Response:
        found = await erasure.session(tenant_id, session_id, str(who.key_id))
        if found is None:
            raise NotFound("There is no such session, and none of that id was erased.")
        told(change(who, ACTION, session_id, tenant_id=tenant_id))
        return _answer(found)

    @router.delete("/sessions/{session_id}", responses=shapes.ok(ErasedShape))
    async def erase_session(
        request: Request,
        who: Changer,
        session_id: UUID,
        if_match: IfMatch = None,
    ) -> Response:
        """Erase a session, and those that it called, from every table.

        Calling it again does no harm. Versions that were trained on it are listed: what they
        learned of it stays in them. With `If-Match`, only as the session was when it was read.
        """
        if if_match is not None:
            found = await services.admin.session(who.tenant_id, session_id)
            if found is None:
                raise NotFound("There is no such session.")
            expected(request)(found)
        return await session_gone(who, who.tenant_id, session_id)

    @router.post("/erasures", responses=shapes.ok(ErasedShape))
    async def erase(who: Changer, body: ErasureBody) -> Response:
        """Erase all that is stored of a user, or a session. Calling it again does no harm."""
        whose = tenant_of(services, who, body.tenant_id)
        if body.session_id is not None:
            return await session_gone(who, whose, body.session_id)
        assert body.end_user is not None
        found = await erasure.user(whose, body.end_user, str(who.key_id))
        # The user's name is in no log.
        told(change(who, ACTION, found.entry_id, tenant_id=whose))
        return _answer(found)

    return router


def _answer(found: Erased) -> Response:
    headers = {"cache-control": "no-store"}
    body = msgspec.json.encode(asdict(found))
    return Response(body, headers=headers, media_type="application/json")
