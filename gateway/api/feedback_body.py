"""What is said in feedback, and what it is said of."""

from __future__ import annotations

import re
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

_THUMBS = {"up": 1.0, "down": -1.0}

#: A turn's id as it is, or as it stands in what dialects call a completion, a response, a message
#: or an item of one (with the item's number behind it).
_OURS = re.compile(
    r"(?:(?:chatcmpl-|cmpl-|resp_|msg_)?([0-9a-f]{32})|(?:msg|rs|fc)_([0-9a-f]{32})[0-9a-f]{4})"
)


class FeedbackBody(BaseModel):
    """A thumb or a score in [-1, 1], with words if there are any.

    `choice` says which of several choices of one completion is meant.
    """

    model_config = ConfigDict(extra="forbid")

    score: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    thumbs: Literal["up", "down"] | None = None
    text: str = Field("", max_length=8192)
    source: str = Field("api", max_length=64, pattern=r"^[\w.:/-]+$")
    choice: int | None = Field(None, ge=0, le=1024)

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if (self.score is None) == (self.thumbs is None):
            raise ValueError("give either score or thumbs")
        return self

    @property
    def value(self) -> float:
        return _THUMBS[self.thumbs] if self.thumbs else self.score or 0.0


class SessionFeedbackBody(FeedbackBody):
    """The same of a whole session: `gamma`^k of it for the turn k places before the last.

    1, the default, gives every turn the whole of it, and 0 only the last.
    """

    choice: None = None
    gamma: float = Field(1.0, ge=0, le=1, allow_inf_nan=False)


class FeedbackStored(BaseModel):
    id: UUID
    turn_id: UUID


class TurnShare(FeedbackStored):
    """A turn's share of what was said of its session: `discount` times the score."""

    score: float
    discount: float


class SessionFeedbackStored(BaseModel):
    session_id: UUID
    turns: list[TurnShare]


def turn_named(name: str) -> UUID | None:
    """The turn that an id of ours names: its own, or that of a reply; None for any other."""
    if found := _OURS.fullmatch(name):
        return UUID(found[1] or found[2])
    try:
        return UUID(name)
    except ValueError:
        return None
