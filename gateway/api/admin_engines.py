"""The admin REST API that drains engines, for a restart or another model's start, and resumes them.

Every gateway follows within `LOOK_S`, mostly at once; replies that run on a draining engine end
there.
"""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import asker, change, is_operator, once, operator
from gateway.api.admin_answer import answer
from gateway.api.admin_query import NO_NUL, IdempotencyKey, Reason
from gateway.api.services import Services
from gateway.errors import NotFound
from gateway.records import Principal
from gateway.store.drains import Drains, DrainStore, Found, engine_standing, standing
from gateway.store.workers import Workers

#: A gateway that is alive reports every second.
_ALIVE_S = 15.0
EngineName = Annotated[str, Path(min_length=1, max_length=200, pattern=NO_NUL)]


@dataclass(frozen=True, slots=True)
class _Here:
    """This gateway as it is now, rather than as it last reported itself."""

    id: UUID
    detail: dict[str, Any]


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/engines", tags=["engines"])
    store, workers = DrainStore(services.database), Workers(services.database)
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Operator = Annotated[Principal, Depends(operator(services))]  # noqa: N806

    async def stand(drains: Drains) -> list[Found]:
        followed = services.drains.current.followed()
        here = _Here(services.worker_id, {"engines": services.pool.describe(), "drains": followed})
        others = await workers.alive("gateway", _ALIVE_S)
        return standing(drains, [here, *(one for one in others if one.id != here.id)])

    async def named(name: str, *, orphaned: bool) -> None:
        """Raises NotFound for what no gateway has, and nobody has drained if that is meant too."""
        for engine in await stand(await store.read()):
            if engine["name"] == name and (engine["gateways"] or orphaned):
                return
        raise NotFound("No gateway has an engine of this name.")

    async def answered(request: Request, name: str, drains: Drains) -> Response:
        await services.drains.refresh()
        standings = {engine["name"]: engine for engine in await stand(drains)}
        # One that is resumed and that no gateway has is gone.
        return answer(request, standings.get(name) or engine_standing(name, None, []))

    @router.get("", responses=shapes.ok(shapes.Engines))
    async def list_engines(request: Request, who: Admin) -> Response:
        """The engines of all gateways: which drain, and how many requests each still has.

        Of a draining one, operators are told by whom and why. `drained` is true once no gateway
        sends it requests or has any left there: then it may be stopped.
        """
        found = await stand(await store.read())
        if not is_operator(services, who):
            found = [engine | {"reason": None, "by": None} for engine in found]
        return answer(request, {"items": found})

    @router.post("/{name}/drain", responses=shapes.ok(shapes.Engine))
    async def drain(
        request: Request,
        who: Operator,
        name: EngineName,
        reason: Reason = "",
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001 - for the document
    ) -> Response:
        """Send an engine no new request; for operators. What drains already stays as it is.

        What runs there ends there. Its sessions go to the others and come back once it is resumed;
        where no other can serve, requests are refused with 503. Sent again with its
        `Idempotency-Key` it drains nothing a second time; the answer is how the engine stands.
        """
        await named(name, orphaned=False)
        wanted = change(who, "engine_drained", name, marked=await once(request, who), reason=reason)
        return await answered(request, name, await store.drain(name, reason, wanted))

    @router.post("/{name}/resume", responses=shapes.ok(shapes.Engine))
    async def resume(
        request: Request,
        who: Operator,
        name: EngineName,
        idempotency_key: IdempotencyKey = None,  # noqa: ARG001
    ) -> Response:
        """Send an engine requests again; for operators. Where it does not drain, nothing changes.

        It serves as soon as it answers and has the live version.
        """
        await named(name, orphaned=True)
        wanted = change(who, "engine_resumed", name, marked=await once(request, who))
        return await answered(request, name, await store.resume(name, wanted))

    return router
