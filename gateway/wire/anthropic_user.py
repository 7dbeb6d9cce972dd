"""What `metadata.user_id` says: a person, and for some agents the session as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.wire.anthropic_blocks import wrong

_CHARACTERS = 512
#: How older claude-code writes it: a device, an account (which may be empty) and a session.
_JOINED = re.compile(
    r"user_(?P<device_id>[0-9a-f]+)_account_(?P<account_uuid>[0-9a-f-]*)"
    r"_session_(?P<session_id>[0-9a-f-]+)"
)


@dataclass(frozen=True, slots=True)
class KnownUser:
    """`name` is the same in all of a person's sessions; None where nothing was said."""

    name: str | None = None
    session_name: str | None = None


def known_user(metadata: Mapping[str, Any] | None, max_id_bytes: int) -> KnownUser:
    """Read the metadata of a request. Raises InvalidRequest.

    A session's name that is too long, or cannot be printed, is as good as none.
    """
    told = (metadata or {}).get("user_id")
    if told is None:
        return KnownUser()
    if not isinstance(told, str) or len(told) > _CHARACTERS:
        raise wrong("metadata.user_id", f"expected a string of at most {_CHARACTERS} characters")
    parts = _parts(told)
    name = next((parts[key] for key in ("account_uuid", "device_id") if parts.get(key)), told)
    session = parts.get("session_id", "")
    named = session.isprintable() and 0 < len(session.encode()) <= max_id_bytes
    return KnownUser(name or None, session if named else None)


def _parts(told: str) -> dict[str, str]:
    if found := _JOINED.fullmatch(told):
        return found.groupdict()
    try:
        value = msgspec.json.decode(told) if told.startswith("{") else None
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(item, str)}
