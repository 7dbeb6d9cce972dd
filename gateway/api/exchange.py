"""One HTTP exchange as raw ASGI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from starlette.types import Message, Receive, Send

from gateway.errors import BodyTooLarge

_JSON = b"application/json"
#: What may be written into headers and logs as it is.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


class ClientLeft(Exception):
    """The client closed the connection before its reply ended."""


@dataclass(slots=True)
class Exchange:
    """One HTTP exchange: what was asked, and the two ends of the connection.

    `more_headers` go out with whatever is answered. The id that the client gave its request is
    given back, if it is a plain word; else it is `request_id`, which is always the log's.
    """

    headers: Mapping[str, str]
    receive: Receive
    send: Send
    request_id: UUID
    begun: bool = False
    more_headers: dict[str, str] = field(default_factory=dict)

    @property
    def client_request_id(self) -> str | None:
        given = self.headers.get("x-request-id", "")
        return given if _PLAIN_ID.fullmatch(given) else None

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLarge as soon as it is, and ClientLeft."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_large(limit)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def left(self) -> None:
        """Return when the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        own = self.request_id.hex.encode()
        given = self.client_request_id
        name = own if given is None else given.encode()
        more = [(key.encode(), value.encode()) for key, value in self.more_headers.items()]
        message: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *more, (b"x-request-id", name), (b"request-id", b"req_" + own)],
        }
        await self.send(message)

    async def write(self, body: bytes, *, more: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [(b"content-type", _JSON), length, *given])
        await self.write(body)

    async def while_there(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` until it ends, or cancel it and raise ClientLeft when the client goes."""
        serving = asyncio.create_task(work)
        watching = asyncio.create_task(self.left())
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise ClientLeft
        finally:
            watching.cancel()
            serving.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)
        serving.result()


def too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes.")
