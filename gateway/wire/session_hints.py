"""Names that clients put into the body of a request, for proxies drop unknown headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Names that agents mint, one a session. A cache key of any other form may be shared by many.
_MINTED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[0-9A-Za-z]{8,}")


def session_in_body(
    prompt_cache_key: str | None, client_metadata: Mapping[str, Any] | None, max_id_bytes: int
) -> str | None:
    """The session that a body names, in the form of `clients.caller`; None where it names none.

    codex writes its session and, of a sub-agent, its thread into `client_metadata`; codex, pi and
    opencode use their session as the cache key of prompts.
    """
    metadata = client_metadata or {}
    session, thread = (_id(metadata.get(key), max_id_bytes) for key in ("session_id", "thread_id"))
    if session is not None:
        if thread is None or thread == session:
            return session
        return _id(f"{session}/{thread}", max_id_bytes)
    key = _id(prompt_cache_key, max_id_bytes)
    return key if key is not None and _MINTED.fullmatch(key) else None


def group_in_body(metadata: object, max_id_bytes: int) -> str | None:
    """The task that a rollout names in `metadata.group_id`; None where it names none."""
    if not isinstance(metadata, dict):
        return None
    return _id(metadata.get("group_id"), max_id_bytes)


def _id(value: object, max_id_bytes: int) -> str | None:
    """A hint is no promise: what cannot be a name is not one."""
    if not isinstance(value, str) or not value or not value.isprintable():
        return None
    return value if len(value.encode("utf-8", "surrogatepass")) <= max_id_bytes else None
