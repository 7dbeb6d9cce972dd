"""What the routes of the admin API are asked with: pages, moments, names."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Header, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gateway.store.admin import SessionFilters
from gateway.store.turn_filters import TurnFilters

#: Postgres has no text with NUL in it.
NO_NUL = r"^[^\x00]*$"

Limit = Annotated[int, Query(ge=1, le=200)]
#: What `pages.page` gives out.
CURSOR = r"^[0-9]{1,16}~[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
Cursor = Annotated[str | None, Query(pattern=CURSOR)]
#: In a body, where types are strict.
Id = Annotated[UUID, Field(strict=False)]
#: A value to compare with.
Word = Annotated[str | None, Query(max_length=400, pattern=NO_NUL)]
#: Seconds since the epoch.
Moment = Annotated[float | None, Query(ge=0, le=2**33, allow_inf_nan=False)]
#: Why something is done, in somebody's words.
Reason = Annotated[str, Query(max_length=400, pattern=NO_NUL)]
LineageName = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]+$")]
#: What is changed must be as it was when this tag was given out.
IfMatch = Annotated[str | None, Header(max_length=400)]
#: What a client calls a change that it may send again (IETF httpapi-idempotency-key-header).
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]

#: The same as fields.
Given = Annotated[str | None, Field(max_length=400, pattern=NO_NUL)]
At = Annotated[float | None, Field(ge=0, le=2**33, allow_inf_nan=False)]
Number = Annotated[int | None, Field(ge=0, lt=2**53)]
Scored = Annotated[float | None, Field(ge=-1, le=1, allow_inf_nan=False)]

#: A name for people, in a body.
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
Text = Annotated[str, StringConstraints(max_length=400, pattern=NO_NUL)]


class Body(BaseModel):
    """What a change says: of the types that JSON has, and nothing that it does not know."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, values: Any) -> Any:
        return whole(values)


def whole(values: Any) -> Any:
    """Fields with 2 for 2.0: to JSON a number without a fraction is an integer."""
    if not isinstance(values, dict):
        return values
    return {
        name: int(one) if isinstance(one, float) and one.is_integer() else one
        for name, one in values.items()
    }


Positive = Annotated[int, Field(ge=1, le=10**9)]


class KeyLimits(Body):
    """What may be used of all gateways together; what is left open has no limit of its own."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    concurrent_requests: Positive | None = None


class Paged(BaseModel):
    """A page of a list: `cursor` is the `next` of the one before it."""

    model_config = ConfigDict(extra="forbid")

    cursor: str | None = Field(None, pattern=CURSOR)
    limit: int = Field(50, ge=1, le=200)


class LineagePage(Paged):
    """A page of what belongs to the lineages of a tenant, or to one of them."""

    lineage_id: UUID | None = None
    limit: int = Field(100, ge=1, le=200)


class SessionsAsked(Paged):
    """Which sessions: seen in [`since`, `until`), sampled by `version`, scored within bounds."""

    client: Given = None
    name: Given = None
    end_user: Given = None
    status: Literal["open", "closed"] | None = None
    since: At = None
    until: At = None
    version: Number = None
    min_score: Scored = None
    max_score: Scored = None

    def filters(self) -> SessionFilters:
        return SessionFilters(**self.model_dump(exclude=set(Paged.model_fields)))


class TurnsChosen(BaseModel):
    """Which turns: made in [`since`, `until`), sampled by `version`, scored within bounds.

    `rule` is what the score came from, `outcome` and `reason` are the verdict.
    """

    model_config = ConfigDict(extra="forbid")

    since: At = None
    until: At = None
    session_id: Id | None = None
    client: Given = None
    end_user: Given = None
    kind: Literal["main", "side", "unknown"] | None = None
    lineage_id: Id | None = None
    version: Number = None
    min_score: Scored = None
    max_score: Scored = None
    rule: Given = None
    outcome: Literal["trained", "dropped", "untrainable", "unscored"] | None = None
    reason: Given = None

    def filters(self) -> TurnFilters:
        return TurnFilters(**self.model_dump(include=set(TurnsChosen.model_fields)))


class TurnsAsked(TurnsChosen, Paged):
    """A page of them."""
