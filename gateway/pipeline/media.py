"""What a request shows: whether it can be served now, and what goes to the engine beside ids."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidRequest
from gateway.records import Media

#: Why a turn that shows anything is not trained on: its stored ids do not tell what was seen.
SHOWN = "media"


def check_kept(media: Sequence[Media]) -> None:
    """Raises InvalidRequest where a stored conversation has lost what it showed."""
    if any(not one.source for one in media):
        raise InvalidRequest(
            "An image or audio clip of an earlier turn is not kept here; send the whole "
            "conversation again, with it.",
            param="messages",
            code="unsupported_content",
        )


def refused(media: Sequence[Media]) -> InvalidRequest:
    """The error for what the engines that could serve it do not take."""
    kinds = sorted({one.kind for one in media})
    return InvalidRequest(
        f"This model does not take {' and '.join(kinds)} content in this form now.",
        param="messages",
        code="unsupported_content",
    )


def sources_of(kind: str, media: Sequence[Media]) -> tuple[str, ...]:
    """Where the engine finds those of a kind, in order."""
    return tuple(one.source for one in media if one.kind == kind)
