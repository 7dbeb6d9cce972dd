"""How large the body of a request to the framework's routes may be, and how slow."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

#: Bytes. Requests for inference have a limit of their own, and an import is read as a stream.
MOST_BODY = 512 * 1024
#: Seconds to the end of a body: it is read before anybody is asked for a key.
MOST_S = 60.0
_STREAMED = frozenset({"/admin/v1/import"})


def bounded(scope: Scope, receive: Receive) -> Receive:
    """`receive`, which raises HTTPException for a body that is too large (413) or slow (408)."""
    if scope["path"] in _STREAMED:
        return receive
    length = Headers(scope=scope).get("content-length", "")
    told = int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else 0
    read, whole = 0, False
    until: float | None = None

    async def limited() -> Message:
        nonlocal read, whole, until
        if told > MOST_BODY:
            raise _too_large()
        if whole:
            # What comes now is that the client leaves.
            return await receive()
        if until is None:
            until = asyncio.get_running_loop().time() + MOST_S
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"The body was not there within {MOST_S:g} s.") from None
        read += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if read > MOST_BODY:
            raise _too_large()
        return message

    return limited


def _too_large() -> HTTPException:
    return HTTPException(413, f"The body may have {MOST_BODY} bytes.")
