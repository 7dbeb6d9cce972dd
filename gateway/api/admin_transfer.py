"""The admin REST API that gives turns away and takes them in, as streams."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from gateway.api import shapes
from gateway.api.admin_access import asker, change, changer
from gateway.api.admin_answer import answer
from gateway.api.admin_query import TurnsChosen
from gateway.api.export_table import COLUMNS, flat
from gateway.api.services import Services
from gateway.errors import BodyTooLarge, InvalidRequest, RequestTimeout
from gateway.records import Principal
from gateway.store.changes import note_change
from gateway.store.turn_export import exported
from gateway.store.turn_import import TurnImport
from gateway.store.turn_lines import Line, read_line
from gateway.wire.parquet import ParquetWriter

_LINES_SENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}

Page = list[dict[str, Any]]

_JSONL, _PARQUET = "application/x-ndjson", "application/vnd.apache.parquet"
#: Of an import: bytes of a line, lines of a request, and of a transaction lines and the bytes at
#: which it ends before.
_LONGEST_LINE = 8 * 1024 * 1024
_MOST_LINES = 100_000
_AT_ONCE = 100
_BYTES_AT_ONCE = 8 * 1024 * 1024
#: Rows of a row group, and the characters at which it ends before.
_GROUP_ROWS = 1000
_GROUP_CHARACTERS = 8 * 1024 * 1024


class ExportAsked(TurnsChosen):
    """Which turns, and what of them: `content` their words, `ids` their token ids as well."""

    format: Literal["jsonl", "parquet"] = "jsonl"
    content: bool = True
    ids: bool = False


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["transfer"])
    Admin = Annotated[Principal, Depends(asker(services))]  # noqa: N806 - a type
    Changer = Annotated[Principal, Depends(changer(services))]  # noqa: N806
    wait_s = services.settings.gateway.body_timeout_s

    @router.get("/export", responses=shapes.streamed(_JSONL, _PARQUET))
    async def export(who: Admin, asked: Annotated[ExportAsked, Query()]) -> Response:
        """Turns with their sessions and histories, the oldest first, while they are read.

        As `jsonl` a turn is a line, which `/import` takes; as `parquet` a row of a flat table. A
        stream that does not end as HTTP says is not whole.
        """
        if asked.ids and not asked.content:
            raise InvalidRequest("ids tell the content: ask for both or neither", param="ids")
        pages = exported(
            services.database,
            who.tenant_id,
            asked.filters(),
            content=asked.content,
            ids=asked.ids,
        )
        parquet = asked.format == "parquet"
        body = _parquet(pages) if parquet else _lines(pages)
        name = f"turns.{asked.format}"
        return StreamingResponse(
            body,
            media_type=_PARQUET if parquet else _JSONL,
            headers={
                "content-disposition": f'attachment; filename="{name}"',
                "cache-control": "no-store",
            },
        )

    @router.post("/import", responses=shapes.ok(shapes.Imported), openapi_extra=_LINES_SENT)
    async def import_(request: Request, who: Changer) -> Response:
        """Take the lines of an export into the tenant, as an archive.

        Imported turns are shown and can be judged, and are never trained on or continued. What is
        there already stays: the same file again changes nothing. At the first wrong line the
        import ends with 400 and its number; of the lines before it up to 99 are not stored either.
        """
        into = TurnImport(services.database, who)
        read, new = 0, 0
        batch: list[Line] = []
        size = 0
        async for data in _read(request, wait_s):
            read += 1
            if read > _MOST_LINES:
                raise BodyTooLarge(f"at most {_MOST_LINES} lines at once")
            batch.append(read_line(data, read))
            size += len(data)
            if len(batch) == _AT_ONCE or size >= _BYTES_AT_ONCE:
                new += await into.add(batch)
                batch, size = [], 0
        if not read:
            raise InvalidRequest("There is no line.", param="body")
        new += await into.add(batch)
        if new:
            wanted = change(who, "turns_imported", "turns", lines=read, turns=new)
            async with services.database.acquire() as connection:
                await note_change(connection, wanted)
        return answer(request, {"lines": read, "turns": new, "present": read - new})

    return router


async def _lines(pages: AsyncIterator[Page]) -> AsyncIterator[bytes]:
    encoder = msgspec.json.Encoder()
    async for page in pages:
        # One turn may be of megabytes: none waits in memory for the rest of its page.
        for record in page:
            yield encoder.encode(record) + b"\n"


async def _parquet(pages: AsyncIterator[Page]) -> AsyncIterator[bytes]:
    writer = ParquetWriter(COLUMNS)
    yield writer.begin()
    rows: Page = []
    size = 0
    async for page in pages:
        more, characters = await asyncio.to_thread(flat, page)
        rows += more
        size += characters
        if len(rows) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield await asyncio.to_thread(writer.group, rows)
            rows, size = [], 0
    if rows:
        yield await asyncio.to_thread(writer.group, rows)
    yield writer.end()


async def _read(request: Request, wait_s: float) -> AsyncIterator[bytes]:
    """Lines of a body that are not empty. Raises BodyTooLarge, RequestTimeout."""
    rest = bytearray()
    chunks = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(wait_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise RequestTimeout(f"Nothing came for {wait_s:g} s.") from None
        except ClientDisconnect:
            raise RequestTimeout("The client left.") from None
        if chunk is None:
            break
        rest += chunk
        whole: list[bytearray] = []
        if b"\n" in chunk:
            *whole, rest = rest.split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise BodyTooLarge(f"at most {_LONGEST_LINE} bytes a line")
        for line in whole:
            if line.strip():
                yield bytes(line)
    if rest.strip():
        yield bytes(rest)
