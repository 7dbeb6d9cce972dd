"""What headers say of the client: who it is, and which session it is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import InvalidRequest
from gateway.records import TurnKind

#: Headers that name a session, the plainest first. The ones after the first of a row name a part
#: of it (a sub-agent, a thread) and so make a session of their own.
SESSION_HEADERS: tuple[tuple[str, ...], ...] = (
    ("x-session-id",),
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("session-id", "thread-id"),  # codex
    ("session_id",),  # pi
    ("x-opencode-session",),
    ("x-session-affinity",),  # opencode
)

_KINDS = {"main": TurnKind.MAIN, "side": TurnKind.SIDE}
_TRUE = ("1", "true", "yes")
_CLIENT_CHARACTERS = 200
_MOST_RETRIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the headers of one request say."""

    session_name: str | None
    declared_kind: TurnKind | None
    turn_type: str
    session_done: bool
    retry_count: int
    idempotency_key: str | None
    client: str


def caller(headers: Mapping[str, str], max_id_bytes: int) -> Caller:
    """Read the headers. Raises InvalidRequest for an id that is too long or not printable."""
    turn_type = _printable(headers.get("x-turn-type", ""))
    retries = headers.get("x-stainless-retry-count", "")
    return Caller(
        session_name=_session_name(headers, max_id_bytes),
        declared_kind=_KINDS.get(turn_type.lower()),
        turn_type=turn_type,
        session_done=headers.get("x-session-done", "").strip().lower() in _TRUE,
        retry_count=min(int(retries), _MOST_RETRIES) if retries.isdecimal() else 0,
        idempotency_key=_opaque(headers, "idempotency-key", max_id_bytes),
        client=_printable(headers.get("user-agent", "")),
    )


def _session_name(headers: Mapping[str, str], max_id_bytes: int) -> str | None:
    for row in SESSION_HEADERS:
        first = _opaque(headers, row[0], max_id_bytes)
        if first is None:
            continue
        parts = [_opaque(headers, name, max_id_bytes) for name in row[1:]]
        name = "/".join([first, *(part for part in parts if part and part != first)])
        _check_length(name, row[0], max_id_bytes)
        return name
    return None


def _opaque(headers: Mapping[str, str], name: str, max_id_bytes: int) -> str | None:
    """A client's own name for something: any printable text of bounded length."""
    value = headers.get(name, "").strip(" \t")
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


def _check_length(value: str, name: str, max_id_bytes: int) -> None:
    if len(value.encode("utf-8", "surrogatepass")) > max_id_bytes:
        raise InvalidRequest(
            f"The header {name} is longer than {max_id_bytes} bytes.", param=name, code="invalid_id"
        )


def _printable(text: str) -> str:
    kept = text[:_CLIENT_CHARACTERS]
    return "".join(character for character in kept if character.isprintable()).strip()
