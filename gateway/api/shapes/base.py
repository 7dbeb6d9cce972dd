"""What all shapes have in common, and how a route names its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Responses = dict[int | str, dict[str, Any]]
#: Seconds since the epoch.
Time = Annotated[float, Field(description="seconds since the epoch")]
#: Names the last row of a page; None at the end.
Next = Annotated[str | None, Field(description="the cursor of the page after this one")]
#: A value that nothing is said of here: what engines and steps tell of themselves.
Open = dict[str, Any]


class Shape(BaseModel):
    """An object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


def ok(shape: type[Shape]) -> Responses:
    """What a route answers with."""
    return {200: {"model": shape, "description": "Served"}}


def created(shape: type[Shape]) -> Responses:
    """The same of a route that makes something."""
    return {201: {"model": shape, "description": "Made"}}


def streamed(*kinds: str) -> Responses:
    """A body of one of these media types, sent while it is made."""
    content = {kind: {"schema": {"type": "string"}} for kind in kinds}
    return {200: {"description": "Served", "content": content}}
