"""Records as bytes, for the spool; a later build reads what an earlier one wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.errors import StoreError
from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord

Storable = SessionRecord | TurnRecord | NextState | FeedbackRecord

_KINDS: dict[str, type[Storable]] = {
    kind.__name__: kind for kind in (SessionRecord, TurnRecord, NextState, FeedbackRecord)
}


def encode(records: Sequence[Storable]) -> bytes:
    """Raises StoreError for a record that is not made of plain values."""
    tagged = [(type(record).__name__, record) for record in records]
    try:
        return msgspec.msgpack.encode(tagged, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise StoreError(f"a record cannot be spooled: {error}") from None


def decode(payload: bytes) -> tuple[Storable, ...]:
    """Raises StoreError for what `encode` did not write."""
    try:
        tagged = msgspec.msgpack.decode(payload, type=list[tuple[str, msgspec.Raw]])
        return tuple(msgspec.msgpack.decode(raw, type=_KINDS[name]) for name, raw in tagged)
    except (msgspec.MsgspecError, KeyError) as error:
        raise StoreError(f"a spooled record cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    """Arrays of ids and of log-probabilities."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(type(value).__name__)
