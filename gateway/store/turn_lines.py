"""One line of an export as an import reads it: checked, bounded, nothing unknown."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest
from gateway.records import FinishReason, Sampling, TurnKind

_NAME = 400
_MOST = 2**31 - 1

Name = Annotated[str, Meta(max_length=_NAME)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
#: Seconds since the epoch, before the year 2100.
Time = Annotated[float, Meta(ge=0, le=4_102_444_800)]
Ms = Annotated[float, Meta(ge=0, le=1e12)]
Score = Annotated[float, Meta(ge=-1, le=1)]
Ids = Annotated[list[Annotated[int, Meta(ge=0, le=_MOST)]], Meta(max_length=2**20)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with its session and what became of it; what else the export says is passed over."""

    session: SessionLine
    turn: TurnLine
    next_state: StateLine | None = None
    judgements: Annotated[list[JudgementLine], Meta(max_length=100)] = []
    feedback: Annotated[list[FeedbackLine], Meta(max_length=1000)] = []


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    external_id: Name | None = None
    client: Name = ""
    end_user: Name | None = None
    resolved_by: Name
    ambiguous: bool = False
    parent_session_id: UUID | None = None
    model: Name
    first_seen: Time


class MessageLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a message must have; the rest of it is kept as it is."""

    role: Name
    content: str | list[dict[str, Any]] | None = None


class TurnLine(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    session_id: UUID
    parent_id: UUID | None
    depth: Count
    branch_reason: Name | None = None
    retry_of: UUID | None = None
    kind: TurnKind
    kind_rule: Name
    kind_confidence: Annotated[float, Meta(ge=0, le=1)]
    resolve_rule: Name
    dialect: Name
    model: Name
    engine: Name
    request_hash: Digest
    chain_hash: Digest
    tools_hash: Digest
    message_count: Count
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    reply: dict[str, Any]
    shared_len: Count = 0
    sampling: Sampling = Sampling()
    finish_reason: FinishReason
    finish_detail: Name | None = None
    cached_tokens: Count = 0
    queued_ms: Ms = 0.0
    first_token_ms: Ms | None = None
    total_ms: Ms = 0.0
    delivered: bool = True
    created_at: Time
    prompt_ids: Ids = []
    sampled_ids: Ids = []


class StateLine(msgspec.Struct, frozen=True, kw_only=True):
    following_id: UUID
    role: Name
    messages: list[dict[str, Any]]
    arrived_at: Time


class JudgementLine(msgspec.Struct, frozen=True, kw_only=True):
    """Those that are done are kept, with positive rounds."""

    #: Well below what the column holds: further rounds may come.
    round: Annotated[int, Meta(ge=-32768, le=10_000)]
    state: Literal["queued", "leased", "done", "skipped", "dead"]
    judge: Name | None = None
    rule: Name | None = None
    score: Score | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    reason: str | None = None
    hint: str | None = None
    done_at: Time | None = None


class FeedbackLine(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    score: Score
    text: Annotated[str, Meta(max_length=8192)] = ""
    source: Annotated[str, Meta(max_length=64)] = "api"
    created_at: Time


#: Ids that begin with their time (RFC 9562): minted here, and made by an import.
_VERSIONS = (7, 8)
_decoder = msgspec.json.Decoder(Line)


def read_line(data: bytes, number: int) -> Line:
    """A line by its number from 1. Raises InvalidRequest that says what is wrong with it."""
    try:
        line = _decoder.decode(data)
        state = line.next_state.messages if line.next_state else []
        msgspec.convert([*line.turn.messages, line.turn.reply, *state], list[MessageLine])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _wrong(number, str(error)) from None
    if line.turn.session_id != line.session.id:
        raise _wrong(number, "the turn is of another session")
    for id_ in (line.turn.id, line.session.id):
        if id_.version not in _VERSIONS:
            raise _wrong(number, f"{id_} is no id of a turn or a session")
    if line.turn.sampled_ids and not line.turn.prompt_ids and not line.turn.shared_len:
        raise _wrong(number, "sampled ids without a prompt")
    return line


def _wrong(number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {why}", param="body", code="invalid_line")
