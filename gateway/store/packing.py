"""Python values as Postgres keeps them, and back."""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.errors import StoreError
from gateway.records import Ranked

R = TypeVar("R", bound=msgspec.Struct)

#: zlib's level that costs least: ids are hard to compress any further.
_FAST = 1

#: Whether this machine has numbers in the order of bytes that is stored.
_LITTLE = sys.byteorder == "little"

_encode = msgspec.json.Encoder().encode


class Unstorable(ValueError):
    """A text holds NUL or half a surrogate pair, which Postgres has no form for."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """[n] to 4·n bytes, little-endian int32. Raises StoreError for what does not fit."""
    try:
        packed = array("i", ids)
    except (OverflowError, ValueError, TypeError) as error:
        raise StoreError(f"token ids cannot be stored: {error}") from None
    return packed.tobytes() if _LITTLE else _swapped(packed)


def unpack_ids(data: bytes) -> array[int]:
    """4·n bytes to [n], at 4 bytes an id."""
    return _unpacked("i", data)


def pack_logprobs(values: Sequence[float]) -> bytes:
    """[n] to 4·n bytes, little-endian float32."""
    try:
        packed = array("f", values)
    except (ValueError, TypeError) as error:
        raise StoreError(f"log-probabilities cannot be stored: {error}") from None
    return packed.tobytes() if _LITTLE else _swapped(packed)


def unpack_logprobs(data: bytes) -> array[float]:
    """4·n bytes to [n]."""
    return _unpacked("f", data)


def pack_kept(rows: Sequence[Sequence[int]]) -> bytes:
    """[R, any] ids, compressed: R, the length of each row, then all of them, as int32."""
    lengths = [len(row) for row in rows]
    return zlib.compress(pack_ids([len(rows), *lengths, *chain.from_iterable(rows)]), _FAST)


def unpack_kept(data: bytes) -> list[array[int]]:
    """Bytes to [R, any]."""
    flat = unpack_ids(zlib.decompress(data))
    start = flat[0] + 1
    ends = [*accumulate(flat[1:start], initial=start)]
    return [flat[begin:end] for begin, end in pairwise(ends)]


def pack_top(rows: Sequence[Ranked]) -> str:
    """[R, any] ids with their log-probabilities, for JSON: as `pack_kept`, then float32."""
    ids = pack_kept([[id_ for id_, _ in row] for row in rows])
    values = zlib.compress(pack_logprobs([value for row in rows for _, value in row]), _FAST)
    return f"{b64encode(ids).decode()} {b64encode(values).decode()}"


def unpack_top(text: str) -> tuple[Ranked, ...]:
    """Text to [R, any]."""
    ids, packed = map(b64decode, text.split(" "))
    values = iter(unpack_logprobs(zlib.decompress(packed)))
    return tuple(tuple((id_, next(values)) for id_ in row) for row in unpack_kept(ids))


def _unpacked(kind: str, data: bytes) -> array[Any]:
    values: array[Any] = array(kind, data)
    if not _LITTLE:
        values.byteswap()
    return values


def _swapped(packed: array[Any]) -> bytes:
    packed.byteswap()
    return packed.tobytes()


def finite(values: Sequence[float]) -> bool:
    """Whether each of them is finite as float32, no sum of which overflows a double."""
    return math.isfinite(sum(array("f", values)))


N = TypeVar("N", float, float | None)


def as_float32(value: N) -> N:
    """The nearest number of 4 bytes, as columns have them; one that is too small for them is 0.

    Postgres would refuse it.
    """
    return value if value is None else array("f", [value])[0]


def json_bytes(value: object, *, loose: bool = False) -> bytes:
    """JSON that Postgres takes. Raises Unstorable, unless `loose`: the value is scrubbed first."""
    if loose:
        value = scrub(value)
    try:
        data = _encode(value)
    except UnicodeEncodeError:
        raise Unstorable("surrogate") from None
    # A reverse solidus before it makes this a text about NUL, which scrubbing leaves as it is.
    if not loose and rb"\u0000" in data:
        raise Unstorable("NUL")
    return data


def scrub(value: Any) -> Any:
    """The same value with U+FFFD for NUL and `?` for each half of a surrogate pair."""
    if type(value) is str:
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(scrub(item) for item in value)
    return scrubbed(value) if isinstance(value, msgspec.Struct) else value


def scrubbed(record: R) -> R:
    """A record whose texts can be stored; its ids are as they were."""
    values = {name: scrub(getattr(record, name)) for name in record.__struct_fields__}
    return replace(record, **values)
