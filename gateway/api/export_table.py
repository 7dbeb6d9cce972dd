"""Exported turns as rows of one flat table."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from gateway.wire.parquet import Column, Kind

_TURN = {
    "parent_id": Kind.TEXT, "retry_of": Kind.TEXT, "depth": Kind.INT, "kind": Kind.TEXT,
    "kind_rule": Kind.TEXT, "resolve_rule": Kind.TEXT, "dialect": Kind.TEXT, "model": Kind.TEXT,
    "engine": Kind.TEXT, "prompt_len": Kind.INT, "completion_len": Kind.INT,
    "version_min": Kind.INT, "version_max": Kind.INT, "finish_reason": Kind.TEXT,
    "trainable": Kind.BOOL, "untrainable_reason": Kind.TEXT, "queued_ms": Kind.FLOAT,
    "first_token_ms": Kind.FLOAT, "total_ms": Kind.FLOAT, "created_at": Kind.TIME,
    "messages": Kind.JSON, "tools": Kind.JSON, "reply": Kind.JSON, "spans": Kind.JSON,
    "sampling": Kind.JSON,
}  # fmt: skip
_SESSION = {
    "external_id": Kind.TEXT, "client": Kind.TEXT, "end_user": Kind.TEXT,
}  # fmt: skip
_HISTORY = {
    "score": Kind.FLOAT, "rule": Kind.TEXT, "next_state": Kind.JSON, "judgements": Kind.JSON,
    "feedback": Kind.JSON, "samples": Kind.JSON,
}  # fmt: skip
#: int32 and float32, little-endian, where they were asked for.
_PACKED = {"prompt_ids": "i", "sampled_ids": "i", "logprobs": "f"}

COLUMNS = (
    Column("turn_id", Kind.TEXT),
    Column("session_id", Kind.TEXT),
    *(Column(name, kind) for part in (_SESSION, _TURN, _HISTORY) for name, kind in part.items()),
    Column("outcome", Kind.TEXT),
    Column("verdict_reason", Kind.TEXT),
    *(Column(name, Kind.BYTES) for name in _PACKED),
)


def flat(records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Rows of `COLUMNS`, and about how many bytes they hold."""
    rows = [_row(record) for record in records]
    size = sum(
        len(value) for row in rows for value in row.values() if isinstance(value, (str, bytes))
    )
    return rows, size


def _row(record: dict[str, Any]) -> dict[str, Any]:
    turn, verdict = record["turn"], record["verdict"] or {}
    row: dict[str, Any] = {
        "turn_id": str(turn["id"]),
        "session_id": str(turn["session_id"]),
        "outcome": verdict.get("outcome"),
        "verdict_reason": verdict.get("reason"),
    }
    for part, source in ((_TURN, turn), (_SESSION, record["session"]), (_HISTORY, record)):
        for name, kind in part.items():
            row[name] = _value(kind, source.get(name))
    for name, code in _PACKED.items():
        if (values := turn.get(name)) is not None:
            numbers = [float("nan") if one is None else one for one in values]
            row[name] = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return row


def _value(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    if kind is Kind.JSON:
        return msgspec.json.encode(value)
    return str(value) if kind is Kind.TEXT else value
