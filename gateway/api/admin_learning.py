"""The admin REST API: what was judged and learned, by whom, and how fast all of it goes."""

import time
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import asker
from gateway.api.admin_answer import answer
from gateway.api.admin_query import LineagePage, Moment, Word
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.records import Principal
from gateway.store import ledger
from gateway.store.scores import Asked, By

#: The longest stretch of time and the most steps of one answer about traffic.
_LONGEST_S = 31 * 86_400
_MOST_STEPS = 2000
_HOUR_S = 3600


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["learning"])
    reads = services.admin
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Lineages = Annotated[LineagePage, Query()]  # noqa: N806
    Bucket = Annotated[int, Query(ge=1, le=_LONGEST_S)]  # noqa: N806

    @router.get("/policies", responses=shapes.ok(shapes.Policies))
    async def policies(request: Request, who: Admin, asked: Lineages) -> Response:
        """Versions of the tenant's lineages, the newest of each first."""
        found = await ledger.policies(
            services.database, who.tenant_id, asked.lineage_id, asked.cursor, asked.limit
        )
        return answer(request, found)

    @router.get("/train-steps", responses=shapes.ok(shapes.TrainSteps))
    async def train_steps(request: Request, who: Admin, asked: Lineages) -> Response:
        """Training steps with their metrics, the latest first."""
        found = await ledger.train_steps(
            services.database, who.tenant_id, asked.lineage_id, asked.cursor, asked.limit
        )
        return answer(request, found)

    @router.get("/swaps", responses=shapes.ok(shapes.Swaps))
    async def swaps(request: Request, who: Admin, asked: Lineages) -> Response:
        """Engines moved from one version to another, the latest first."""
        found = await ledger.swaps(
            services.database, who.tenant_id, asked.lineage_id, asked.cursor, asked.limit
        )
        return answer(request, found)

    @router.get("/scores", responses=shapes.ok(shapes.Scores))
    async def scores(  # noqa: PLR0917 - its parameters are the query's
        request: Request,
        who: Admin,
        by: By = By.TIME,
        since: Moment = None,
        until: Moment = None,
        bucket_s: Bucket = _HOUR_S,
        lineage_id: UUID | None = None,
        version: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
        client: Word = None,
    ) -> Response:
        """Scores of main-line turns: n, mean, its 95 % interval and how many of each sign.

        Turns are those made in [`since`, `until`); by `time`, a key is the first second of a
        stretch of `bucket_s`.
        """
        asked = Asked(
            since=since,
            until=until,
            bucket_s=bucket_s,
            lineage_id=lineage_id,
            version=version,
            client=client,
        )
        return answer(request, await reads.scores(who.tenant_id, by, asked))

    @router.get("/traffic", responses=shapes.ok(shapes.Traffic))
    async def traffic(
        request: Request,
        who: Admin,
        since: Moment = None,
        until: Moment = None,
        bucket_s: Bucket = 10,
    ) -> Response:
        """Turns served, tokens, and percentiles of latency and time to first token, by steps.

        Default: the last quarter of an hour.
        """
        end = time.time() if until is None else until
        begin = end - 900 if since is None else since
        if end - begin > _LONGEST_S or end - begin > _MOST_STEPS * bucket_s:
            raise InvalidRequest(
                f"at most {_LONGEST_S // 86_400} days and {_MOST_STEPS} steps at once",
                param="since",
            )
        items = await reads.traffic(who.tenant_id, begin, end, bucket_s)
        return answer(request, {"bucket_s": bucket_s, "items": items})

    @router.get("/staleness", responses=shapes.ok(shapes.Staleness))
    async def staleness(
        request: Request, who: Admin, steps: Annotated[int, Query(ge=1, le=200)] = 20
    ) -> Response:
        """How many versions waiting samples are behind, and how many those of the last steps were.

        `max_lag` is the bound: samples beyond it are dropped.
        """
        bound = services.settings.freshness
        items = await reads.staleness(who.tenant_id, steps)
        return answer(request, {"max_lag": bound.max_lag, "batch": bound.batch, "items": items})

    return router
