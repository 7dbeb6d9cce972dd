"""Thrift's compact protocol, as far as it takes to write (not to read) a Parquet footer.

A value is (its type in the protocol, its bytes).
"""

from __future__ import annotations

from collections.abc import Sequence

Value = tuple[int, bytes]

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_SHORT_LIST = 15


def i32(number: int) -> Value:
    return _I32, varint(_zigzag(number))


def i64(number: int) -> Value:
    return _I64, varint(_zigzag(number))


def binary(data: bytes) -> Value:
    return _BINARY, varint(len(data)) + data


def listed(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty one is of structs."""
    kind, size = values[0][0] if values else _STRUCT, len(values)
    short = size < _SHORT_LIST
    head = bytes([size << 4 | kind]) if short else bytes([0xF0 | kind]) + varint(size)
    return _LIST, head + b"".join(data for _, data in values)


def struct_of(*fields: tuple[int, Value]) -> Value:
    """A struct of fields by their ids, which must rise by less than 16 each."""
    found, last = bytearray(), 0
    for number, (kind, data) in fields:
        found.append((number - last) << 4 | kind)
        found += data
        last = number
    return _STRUCT, bytes(found) + b"\0"


def varint(number: int) -> bytes:
    """Seven bits a byte, the low ones first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _zigzag(number: int) -> int:
    return number << 1 ^ number >> 63
