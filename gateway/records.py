"""Frozen records that the parts hand to each other, and the ids that name them.

Token ids are plain ints, log-probabilities natural logs of the distribution that was sampled
from, times seconds since the epoch (UTC) unless a name says `_ms`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

#: One chat message in OpenAI form (`role`, `content`, `tool_calls`, …), decoded JSON. Every
#: dialect is turned into this form at the edge; unknown keys are kept for the template.
Message = Mapping[str, Any]


def new_id() -> UUID:
    """A UUID of version 7 (RFC 9562): sortable by time, unique without coordination."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | (tail >> 68 & 0xFFF) << 64
    return UUID(int=value | 0b10 << 62 | tail & (1 << 62) - 1)


class Role(StrEnum):
    """What an API key may do."""

    AGENT = "agent"
    ROLLOUT = "rollout"
    ADMIN = "admin"


class TurnKind(StrEnum):
    MAIN = "main"
    SIDE = "side"
    UNKNOWN = "unknown"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"


class JobState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    SKIPPED = "skipped"
    DEAD = "dead"


class SampleState(StrEnum):
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    DROPPED = "dropped"


class PolicyState(StrEnum):
    CANDIDATE = "candidate"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


class PolicyKind(StrEnum):
    BASE = "base"
    LORA = "lora"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is asking: one API key, resolved. Everything it reaches is inside `tenant_id`."""

    key_id: UUID
    tenant_id: UUID
    tenant: str
    name: str
    role: Role
    lineage_id: UUID
    capture: bool = True
    on_stale: str = "serve"
    sampling: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """One version of one lineage, as engines are told about it.

    Version 0 is the base model (`kind` base, no `uri`). `adapter` is the name that an engine
    knows the version by; it is unique for ever, because engines reload a name from its path.
    """

    lineage_id: UUID
    version: int
    kind: PolicyKind
    uri: str | None = None
    checksum: str | None = None

    @property
    def adapter(self) -> str | None:
        return (
            None if self.kind is not PolicyKind.LORA else f"{self.lineage_id.hex}-v{self.version}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; None is what the client left open.

    `logit_bias` maps token id to bias. `grammar` is a JSON schema or regular expression in the
    engine's own form.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    grammar: Mapping[str, Any] | None = None

    def filled(self, defaults: Sampling, override: Mapping[str, float] | None = None) -> Sampling:
        """What is sent to the engine: the client's values, the deployment's where left open.

        A key's `override` wins over both, so that captured traffic can be kept trainable.
        """
        values = {
            name: getattr(defaults, name)
            for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens")
            if getattr(self, name) is None
        }
        return replace(self, **{**values, **(override or {})})

    def untrainable(self) -> str | None:
        """Why a policy gradient cannot use tokens sampled this way, or None.

        The trainer reproduces softmax(logits / temperature) and nothing else.
        """
        if self.temperature is not None and self.temperature <= 0:
            return "temperature_zero"
        if self.top_p is not None and self.top_p < 1:
            return "top_p_truncated"
        if self.top_k is not None and self.top_k > 0:
            return "top_k_truncated"
        if self.min_p:
            return "min_p_truncated"
        if self.frequency_penalty or self.presence_penalty:
            return "penalty"
        if self.repetition_penalty not in (None, 1, 1.0):
            return "penalty"
        if self.logit_bias:
            return "logit_bias"
        return "grammar" if self.grammar else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One call of an agent, whatever its dialect, checked and in one form.

    `session_name` and `declared_kind` are what the client says of itself; None where it is
    silent, which is the normal case. `turn_type` is the client's own word for the call, as sent.
    `tool_choice` is `auto`, `none` (tools are shown, calls are text) or what the engine enforces.
    """

    dialect: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False
    include_usage: bool = False
    tool_choice: str = "auto"
    choices: int = 1
    top_logprobs: int | None = None
    session_name: str | None = None
    declared_kind: TurnKind | None = None
    turn_type: str = ""
    session_done: bool = False
    retry_count: int = 0
    idempotency_key: str | None = None
    user: str | None = None
    client: str = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled tokens [start, end) came from `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine is asked to sample. `input_ids` [P] are validated against the vocabulary."""

    rid: str
    input_ids: Sequence[int]
    sampling: Sampling
    policy: PolicyRef
    stop_token_ids: tuple[int, ...] = ()
    session_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens newly sampled: `ids` [n] and their `logprobs` [n]; the last one carries `finish`."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a generation ended.

    `matched` is the stop token id or stop string that ended it. `spans` cover every sampled token.
    """

    reason: FinishReason
    matched: int | str | None = None
    spans: tuple[VersionSpan, ...] = ()
    cached_tokens: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What newly sampled tokens add to the reply that a client sees.

    `call_index` with `call_id` and `call_name` opens a tool call, with `arguments` extends it.
    """

    text: str = ""
    reasoning: str = ""
    call_index: int | None = None
    call_id: str | None = None
    call_name: str | None = None
    arguments: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.call_index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole assistant reply, parsed from its ids."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """The assistant message in OpenAI form, as clients will send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds from the arrival of the request."""

    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One captured turn, exactly as sampled.

    `messages` are those that are new to the parent (all of them at a root). `prompt_ids` are the
    ids after the first `shared_len` ids, which equal the start of the parent's prompt + sampled
    ids; the engine saw `shared_len + len(prompt_ids)` ids. `sampled_ids` and `logprobs` [R]
    include the stop token where one was sampled. `chain_hash` covers the canonical messages up to
    and including the reply, `tools_hash` what it leaves out: `resolve.head_hash` of the request.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """Every message that followed a reply, stored when the request that carries them arrives.

    With `judge` set, the turn's job is queued in the same transaction.
    """

    turn_id: UUID
    tenant_id: UUID
    following_id: UUID
    messages: tuple[Message, ...]
    role: str
    arrived_at: float
    judge: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a main-line turn: trained in a step toward a version, or not, and why."""

    turn_id: UUID
    outcome: str
    reason: str
    step_id: UUID | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A stored turn whose reply ends a prefix of a request: a possible parent."""

    turn_id: UUID
    session_id: UUID
    lineage_id: UUID
    key_id: UUID
    chain_hash: bytes
    depth: int
    message_count: int
    kind: TurnKind
    tools_hash: bytes
    finish_reason: FinishReason
    continued: bool
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Which session and parent turn a request belongs to, and the rule that said so.

    `session_id` None opens a session. The messages from `new_from` on follow the parent's reply
    (all of them at a root). `branch_reason` is why the parent's ids cannot be extended, as far
    as the messages tell, or why there is no parent; None is the normal case. `ambiguous`: other
    turns matched as well. `beside_tools`: the session that was named has turns with tools.
    """

    session_id: UUID | None
    parent: Candidate | None
    rule: str
    new_from: int = 0
    branch_reason: str | None = None
    ambiguous: bool = False
    beside_tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """All ids of a turn, put together from its chain.

    `prompt_ids` [P] is what the engine saw, `sampled_ids` [R] what it sampled.
    """

    turn_id: UUID
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRecord:
    """What somebody said of a turn outside the conversation; `score` in [-1, 1]."""

    id: UUID
    tenant_id: UUID
    turn_id: UUID
    score: float
    text: str = ""
    source: str = "api"
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeJob:
    """A claimed judging job with all that a judge may see.

    `request` are the messages new in the turn, `next_state` every message that followed the reply.
    """

    turn_id: UUID
    round: int
    tenant_id: UUID
    session_id: UUID
    lineage_id: UUID
    kind: TurnKind
    attempts: int
    request: tuple[Message, ...]
    reply: Message
    next_state: tuple[Message, ...]
    feedback: tuple[FeedbackRecord, ...]
    finish_reason: FinishReason
    trainable: bool
    untrainable_reason: str | None
    version_min: int | None
    arrived_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's result. `score` in [-1, 1], None where nothing could be said."""

    judge: str
    score: float | None
    rule: str | None = None
    confidence: float | None = None
    reason: str | None = None
    votes: tuple[Mapping[str, Any], ...] = ()
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHead:
    """A sample as the schedule sees it, before its ids are loaded."""

    id: UUID
    turn_id: UUID
    session_id: UUID
    score: float
    version_min: int
    arrived_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """What is trained on, exactly as sampled.

    `prompt_ids` [P], `sampled_ids` [R] and `logprobs` [R] (behaviour policy, at `temperature`).
    `user` groups samples for the running baseline.
    """

    id: UUID
    turn_id: UUID
    session_id: UUID
    user: str
    score: float
    weight: float
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[VersionSpan, ...]
    temperature: float
    finish_reason: FinishReason
    arrived_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A finished training step, as one fenced transaction names it.

    `lags` [n] are the version lags of the consumed samples `sample_ids` [n].
    """

    id: UUID
    lineage_id: UUID
    epoch: int
    from_version: int
    to_version: int
    policy: PolicyRef
    checkpoint: str
    sample_ids: tuple[UUID, ...]
    lags: tuple[int, ...]
    metrics: Mapping[str, Any]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRecord:
    """One engine moved (or not) from one version to another."""

    lineage_id: UUID
    engine: str
    from_version: int
    to_version: int
    outcome: str
    detail: str | None = None
    load_ms: float | None = None
    pause_ms: float | None = None
    probe_max_diff: float | None = None
    started_at: float
    ended_at: float
