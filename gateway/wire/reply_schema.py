"""The form that a reply is held to, as the grammar that an engine is given."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.json_body import check_depth, invalid, missing


def reply_grammar(kind: object, schema: object, at: str, schema_at: str) -> dict[str, Any] | None:
    """None for text. `at` and `schema_at` name the fields that hold `kind` and `schema`.

    Raises InvalidRequest for another kind, and for a schema that is missing or nested too deeply.
    """
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_schema": '{"type":"object"}'}
    if kind != "json_schema":
        raise invalid(at, "supported values are 'text', 'json_object' and 'json_schema'")
    if not isinstance(schema, dict):
        raise missing(schema_at)
    check_depth(schema, schema_at)
    return {"json_schema": msgspec.json.encode(schema).decode()}
