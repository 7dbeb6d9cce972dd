"""Tables as Parquet files, written as a stream: plain encoding, gzip, one page a column and group.

The format: https://parquet.apache.org/docs/file-format/. Every column may be null and none is
nested. A row group is held in memory while it is made, and of all earlier ones only where they
stand in the file.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.wire.thrift import Value, binary, i32, i64, listed, struct_of, varint

_MAGIC = b"PAR1"
_PLAIN, _RLE = 0, 3
_GZIP = 2
_OPTIONAL = 1
_FASTEST = 1
_MICROSECONDS = 1_000_000


class Kind(Enum):
    """What a column holds: (physical type, converted type if any) of the format."""

    BOOL = (0, None)
    INT = (2, None)
    #: Seconds since the epoch, kept as microseconds of UTC.
    TIME = (2, 10)
    FLOAT = (5, None)
    TEXT = (6, 0)
    JSON = (6, 19)
    BYTES = (6, None)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind


class ParquetWriter:
    """Makes the bytes of one file: `begin`, `group` for each batch of rows, then `end`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._groups: list[Value] = []
        self._rows = 0
        self._at = len(_MAGIC)

    def begin(self) -> bytes:
        return _MAGIC

    def group(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        """A row group. What a row does not have is null."""
        pages, chunks, total = [], [], 0
        for column in self._columns:
            page, raw = _page(column.kind, [row.get(column.name) for row in rows])
            chunks.append(self._chunk(column, len(rows), self._at, len(page), raw))
            pages.append(page)
            self._at += len(page)
            total += raw
        self._groups.append(struct_of((1, listed(chunks)), (2, i64(total)), (3, i64(len(rows)))))
        self._rows += len(rows)
        return b"".join(pages)

    def end(self) -> bytes:
        """The footer, which says where everything is."""
        root = struct_of((4, binary(b"turns")), (5, i32(len(self._columns))))
        schema = [root, *(_element(column) for column in self._columns)]
        footer = struct_of(
            (1, i32(1)),
            (2, listed(schema)),
            (3, i64(self._rows)),
            (4, listed(self._groups)),
            (6, binary(b"nextstate")),
        )[1]
        return footer + struct.pack("<I", len(footer)) + _MAGIC

    def _chunk(self, column: Column, rows: int, at: int, size: int, raw: int) -> Value:
        meta = struct_of(
            (1, i32(column.kind.value[0])),
            (2, listed([i32(_PLAIN), i32(_RLE)])),
            (3, listed([binary(column.name.encode())])),
            (4, i32(_GZIP)),
            (5, i64(rows)),
            (6, i64(raw)),
            (7, i64(size)),
            (9, i64(at)),
        )
        return struct_of((2, i64(at)), (3, meta))


def _element(column: Column) -> Value:
    physical, converted = column.kind.value
    fields = [(1, i32(physical)), (3, i32(_OPTIONAL)), (4, binary(column.name.encode()))]
    if converted is not None:
        fields.append((6, i32(converted)))
    return struct_of(*fields)


def _page(kind: Kind, values: Sequence[Any]) -> tuple[bytes, int]:
    """A page with its header, and what both would take uncompressed."""
    levels = _levels([value is not None for value in values])
    data = levels + _plain(kind, [value for value in values if value is not None])
    packed = gzip.compress(data, _FASTEST, mtime=0)
    header = struct_of(
        (1, i32(0)),
        (2, i32(len(data))),
        (3, i32(len(packed))),
        (5, struct_of((1, i32(len(values))), (2, i32(_PLAIN)), (3, i32(_RLE)), (4, i32(_RLE)))),
    )[1]
    return header + packed, len(header) + len(data)


def _levels(there: Sequence[bool]) -> bytes:
    """Definition levels: one bit a value, in one bit-packed run, after its length."""
    bits = _bits(there)
    run = varint(len(bits) << 1 | 1) + bits
    return struct.pack("<I", len(run)) + run


def _bits(flags: Sequence[bool]) -> bytes:
    packed = sum(1 << place for place, flag in enumerate(flags) if flag)
    return packed.to_bytes((len(flags) + 7) // 8, "little")


def _plain(kind: Kind, values: Sequence[Any]) -> bytes:
    match kind:
        case Kind.BOOL:
            return _bits(values)
        case Kind.INT:
            return struct.pack(f"<{len(values)}q", *values)
        case Kind.TIME:
            return struct.pack(f"<{len(values)}q", *(round(one * _MICROSECONDS) for one in values))
        case Kind.FLOAT:
            return struct.pack(f"<{len(values)}d", *values)
        case _:
            texts = [one.encode() if isinstance(one, str) else one for one in values]
            return b"".join(struct.pack("<I", len(one)) + one for one in texts)
