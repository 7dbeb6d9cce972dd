"""Arguments that are written without JSON: which of them are text, and what the others say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def is_string(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a schema says that this argument is text, whatever it looks like."""
    properties = schema.get("properties")
    of_key = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(of_key, Mapping):
        return False
    types = of_key.get("type")
    if types is None:
        choices = of_key.get("enum")
        return isinstance(choices, list) and all(isinstance(one, str) for one in choices)
    return types == "string" or (isinstance(types, list) and "string" in types)


def fields_of(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """(name, its own schema, whether it is required) of each property that a schema names."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    return [(name, own, name in needed) for name, own in properties.items()]


def as_json(value: str) -> str:
    """A value as JSON: what it says if it is some, or a word for a constant; otherwise a string."""
    plain = value.strip()
    try:
        json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _CONSTANTS.get(plain) or json.dumps(value, ensure_ascii=False)
    return plain


#: As models that learnt from Python spell them.
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def _refuse(constant: str) -> None:
    raise ValueError(constant)
