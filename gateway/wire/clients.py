"""What headers say of the client: who it is, and which session it is in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gateway.errors import InvalidRequest
from gateway.records import TurnKind


@dataclass(frozen=True, slots=True)
class Naming:
    """Headers of one agent.

    `part` names a part of the session (a sub-agent, a thread), which is a session of its own;
    `parent` the part, or the session, that called it.
    """

    session: str
    part: str | None = None
    parent: str | None = None


#: The plainest first.
NAMINGS = (
    Naming("x-session-id", parent="x-parent-session-id"),  # opencode, and whoever says so
    Naming("x-claude-code-session-id", "x-claude-code-agent-id"),
    Naming("session-id", "thread-id", "x-codex-parent-thread-id"),  # codex
    Naming("session_id"),  # pi
    Naming("x-opencode-session"),
    Naming("x-session-affinity", parent="x-parent-session-id"),  # opencode
)

#: Headers that say more of a call than the clients of everyone do.
_TELLING = frozenset(
    {
        "x-turn-type", "x-session-done", "idempotency-key", "x-group-id", "x-openai-subagent",
        "x-codex-turn-metadata", *(naming.session for naming in NAMINGS),
    }
)  # fmt: skip

_KINDS = {"main": TurnKind.MAIN, "side": TurnKind.SIDE}
_TRUE = ("1", "true", "yes")
_CLIENT_CHARACTERS = 200
_METADATA_CHARACTERS = 8_192
_REQUEST_KIND = re.compile(r'"request_kind":\s*"(\w+)"')
_MOST_RETRIES = 1_000


class Caller(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the headers of one request say, in the names of `TurnRequest`."""

    session_name: str | None = None
    parent_session_name: str | None = None
    marker: str = ""
    declared_kind: TurnKind | None = None
    turn_type: str = ""
    session_done: bool = False
    retry_count: int = 0
    idempotency_key: str | None = None
    client: str = ""
    group_name: str | None = None

    def or_session(self, name: str | None) -> Caller:
        """The same, in the session that the body names where the headers name none."""
        return self if name is None or self.session_name else replace(self, session_name=name)

    def or_group(self, name: str | None) -> Caller:
        """The same, of the group that the body names where the headers name none."""
        return self if name is None or self.group_name else replace(self, group_name=name)


def caller(headers: Mapping[str, str], max_id_bytes: int) -> Caller:
    """Read the headers. Raises InvalidRequest for an id that is too long or not printable."""
    client, retries = headers.get("user-agent"), headers.get("x-stainless-retry-count")
    client = _printable(client) if client else ""
    retry_count = _count(retries) if retries else 0
    if _TELLING.isdisjoint(headers):
        # As nearly all requests are.
        return Caller(client=client, retry_count=retry_count)
    turn_type = _printable(headers.get("x-turn-type", ""))
    name, parent = _session_names(headers, max_id_bytes)
    return Caller(
        session_name=name,
        parent_session_name=parent,
        marker=_marker(headers, parent),
        declared_kind=_KINDS.get(turn_type.lower()),
        turn_type=turn_type,
        session_done=headers.get("x-session-done", "").strip().lower() in _TRUE,
        retry_count=retry_count,
        idempotency_key=_opaque(headers, "idempotency-key", max_id_bytes),
        client=client,
        group_name=_opaque(headers, "x-group-id", max_id_bytes),
    )


def _count(digits: str) -> int:
    """A header's number, 0 where it is none: no more than its first digits are read."""
    return min(int(digits[:9]), _MOST_RETRIES) if digits.isdecimal() else 0


def _session_names(headers: Mapping[str, str], max_id_bytes: int) -> tuple[str | None, str | None]:
    """(the session's name, that of the session which called it)."""
    for naming in NAMINGS:
        session = _opaque(headers, naming.session, max_id_bytes)
        if session is None:
            continue
        part = _opaque(headers, naming.part, max_id_bytes) if naming.part else None
        parent = _opaque(headers, naming.parent, max_id_bytes) if naming.parent else None
        name = _joined(session, part)
        if naming.part is not None:
            parent = _joined(session, parent) if part not in (None, session) else None
        _check_length(name, naming.session, max_id_bytes)
        return name, None if parent == name else parent
    return None, None


def _joined(session: str, part: str | None) -> str:
    return session if part in (None, session) else f"{session}/{part}"


def _marker(headers: Mapping[str, str], parent: str | None) -> str:
    """`subagent`, `compaction` or nothing, as codex says it or as a parent session shows."""
    codex = headers.get("x-openai-subagent", "").strip().lower()
    metadata = headers.get("x-codex-turn-metadata")
    kind = None if metadata is None else _REQUEST_KIND.search(metadata[:_METADATA_CHARACTERS])
    if codex == "compact" or (kind is not None and kind.group(1) == "compaction"):
        return "compaction"
    return "subagent" if codex or parent is not None else ""


def _opaque(headers: Mapping[str, str], name: str, max_id_bytes: int) -> str | None:
    """A client's own name for something: any printable text of bounded length."""
    sent = headers.get(name)
    if sent is None:
        # As nearly all are.
        return None
    value = _as_sent(sent).strip(" \t")
    if not value:
        return None
    _check_length(value, name, max_id_bytes)
    if not value.isprintable():
        raise InvalidRequest(
            f"The header {name} holds characters that cannot be printed.",
            param=name,
            code="invalid_id",
        )
    return value


def _as_sent(value: str) -> str:
    """A header is read as Latin-1, in which UTF-8 is other letters, if any."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _check_length(value: str, name: str, max_id_bytes: int) -> None:
    if len(value.encode("utf-8", "surrogatepass")) > max_id_bytes:
        raise InvalidRequest(
            f"The header {name} is longer than {max_id_bytes} bytes.", param=name, code="invalid_id"
        )


def _printable(text: str) -> str:
    kept = text[:_CLIENT_CHARACTERS]
    if kept.isprintable():
        return kept.strip()
    return "".join(character for character in kept if character.isprintable()).strip()
