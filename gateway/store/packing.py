"""Python values as Postgres keeps them, and back."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from gateway.errors import StoreError

R = TypeVar("R")

_IDS = np.dtype("<i4")
_LOGPROBS = np.dtype("<f4")


class Unstorable(ValueError):
    """A text holds NUL or half a surrogate pair, which Postgres has no form for."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """[n] to 4·n bytes, little-endian int32. Raises StoreError for what does not fit."""
    try:
        return np.asarray(ids, dtype=_IDS).tobytes()
    except (OverflowError, ValueError, TypeError) as error:
        raise StoreError(f"token ids cannot be stored: {error}") from None


def unpack_ids(data: bytes) -> array[int]:
    """4·n bytes to [n], at 4 bytes an id."""
    return _unpacked("i", data)


def pack_logprobs(values: Sequence[float]) -> bytes:
    """[n] to 4·n bytes, little-endian float32."""
    try:
        return np.asarray(values, dtype=_LOGPROBS).tobytes()
    except (ValueError, TypeError) as error:
        raise StoreError(f"log-probabilities cannot be stored: {error}") from None


def unpack_logprobs(data: bytes) -> array[float]:
    """4·n bytes to [n]."""
    return _unpacked("f", data)


def _unpacked(kind: str, data: bytes) -> array[Any]:
    values: array[Any] = array(kind, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def finite(values: Sequence[float]) -> bool:
    return bool(np.isfinite(np.asarray(values, dtype=_LOGPROBS)).all())


def json_text(value: object, *, loose: bool = False) -> str:
    """JSON for a jsonb column. Raises Unstorable, unless `loose`: the value is scrubbed."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise Unstorable("surrogate") from None
    if not loose and rb"\u0000" in data:
        raise Unstorable("NUL")
    return data.decode()


def scrub(value: Any) -> Any:
    """The same value with U+FFFD for NUL and `?` for each half of a surrogate pair."""
    if type(value) is str:
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(scrub(item) for item in value)
    return value


def scrubbed(record: R) -> R:
    """A record whose texts can be stored; its ids are as they were."""
    assert is_dataclass(record)
    assert not isinstance(record, type)
    return replace(
        record, **{field.name: scrub(getattr(record, field.name)) for field in fields(record)}
    )
