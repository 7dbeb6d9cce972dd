"""What is stored of a turn and of what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from gateway.records.generation import FinishReason
from gateway.records.message import Message
from gateway.records.policy import VersionSpan
from gateway.records.reply import Timings, Usage
from gateway.records.request import TurnKind
from gateway.records.sampling import Sampling

#: In the place of a request's tools where they are its parent's: a session stores them once. No
#: client can send it, since it is no function.
SAME_TOOLS: tuple[Mapping[str, Any], ...] = ({"type": "as_before"},)


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session as it is first seen; `resolved_by` names the rule that found or made it."""

    id: UUID
    tenant_id: UUID
    key_id: UUID
    lineage_id: UUID
    external_id: str | None
    resolved_by: str
    model: str
    client: str = ""
    ambiguous: bool = False
    parent_session_id: UUID | None = None
    user: str | None = None
    seen_at: float


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One captured turn, exactly as sampled.

    `messages` are those that are new to the parent (all of them at a root). `prompt_ids` are the
    ids after the first `shared_len` ids, which equal the start of the parent's prompt + sampled
    ids; the engine saw `shared_len + len(prompt_ids)` ids. `sampled_ids` and `logprobs` [R]
    include the stop token where one was sampled. `chain_hash` covers the canonical messages up to
    and including the reply, `tools_hash` what it leaves out: `resolve.head_hash` of the request.
    `delivered` is false where the client left before the end, `response_store` whether it may
    continue from the reply by its id, and `echoes` what it sends back of the reply otherwise.
    `group_id` names turns that answer the same task, `reasoning_tokens` counts those of
    `sampled_ids` before the answer, and a `redacted` turn is judged and never trained. `kept`
    [R, any] are the ids that each token was sampled from, where an engine told them.
    `response_fields` is what a response that is read by its id says of its request beyond all
    that: None where none is.
    """

    id: UUID
    tenant_id: UUID
    session_id: UUID
    lineage_id: UUID
    parent_id: UUID | None
    depth: int
    branch_reason: str | None
    retry_of: UUID | None
    kind: TurnKind
    kind_rule: str
    kind_confidence: float
    resolve_rule: str
    dialect: str
    model: str
    engine: str
    request_hash: bytes
    chain_hash: bytes
    message_count: int
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tools_hash: bytes
    reply: Message
    shared_len: int
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[VersionSpan, ...]
    sampling: Sampling
    finish_reason: FinishReason
    finish_detail: str | None = None
    trainable: bool
    untrainable_reason: str | None
    stream_mismatch: bool = False
    usage: Usage
    timings: Timings
    created_at: float
    idempotency_key: str | None = None
    delivered: bool = True
    response_store: bool = True
    echoes: tuple[str, ...] = ()
    group_id: str | None = None
    reasoning_tokens: int = 0
    redacted: bool = False
    kept: Sequence[Sequence[int]] | None = None
    response_fields: Mapping[str, Any] | None = None


class NextState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Every message that followed a reply, stored when the request that carries them arrives.

    With `judge` set, the turn's job is queued in the same transaction. `how` is "rolled_back"
    where the user discarded the reply: the messages then took the place of the turn's own.
    """

    turn_id: UUID
    tenant_id: UUID
    following_id: UUID
    messages: tuple[Message, ...]
    role: str
    arrived_at: float
    judge: bool = True
    how: str = "continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a main-line turn: trained in a step toward a version, or not, and why."""

    turn_id: UUID
    outcome: str
    reason: str
    step_id: UUID | None = None
    version: int | None = None


class FeedbackRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What somebody said of a turn outside the conversation; `score` in [-1, 1].

    Feedback of a whole session is one record a turn, with the session and the `discount` in
    [0, 1] by which its score was spread over the turns.
    """

    id: UUID
    tenant_id: UUID
    turn_id: UUID
    score: float
    text: str = ""
    source: str = "api"
    idempotency_key: str | None = None
    session_id: UUID | None = None
    discount: float | None = None
