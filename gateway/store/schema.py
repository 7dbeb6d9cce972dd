"""The tables. The hot path writes them with asyncpg; Alembic migrations build them.

No foreign key makes a child wait for its parent: turns of one session may be committed out of
order, and a spooled turn arrives after its followers. Keys and policies, written by operators and
the trainer, do have them. Ids and log-probabilities are little-endian int32 and float32 in
`bytea`, stored out of line and uncompressed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, REAL, TIMESTAMP
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        UUID: PgUUID(as_uuid=True),
        datetime: TIMESTAMP(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
        str: Text,
        bytes: LargeBinary,
        float: REAL,
    }


def _now() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Tenant(Base):
    __tablename__ = "tenants"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = _now()
    settings: Mapped[dict[str, Any] | None]


class Lineage(Base):
    """A named line of versions over one base model.

    `live_version` is what engines are to serve; `next_version` is never reused; `epoch` fences
    out a trainer that is no longer the leader. `trains` is off for a control arm. A share of
    sessions, `canary_share`, is served `canary_version`; `pinned_version` holds against promotion.
    """

    __tablename__ = "lineages"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    base_model: Mapped[str]
    kind: Mapped[str]
    trains: Mapped[bool] = mapped_column(server_default=text("true"))
    live_version: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    next_version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    epoch: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    created_at: Mapped[datetime] = _now()
    canary_version: Mapped[int | None] = mapped_column(BigInteger)
    pinned_version: Mapped[int | None] = mapped_column(BigInteger)
    canary_share: Mapped[float] = mapped_column(server_default=text("0"))
    __table_args__ = (
        _one_of("kind", "lora", "full"),
        CheckConstraint("canary_share BETWEEN 0 AND 1", name="canary_share_in_range"),
    )


class ApiKey(Base):
    """Only the SHA-256 of a key is kept; `hint` is its first characters, for people."""

    __tablename__ = "api_keys"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    lineage_id: Mapped[UUID] = mapped_column(ForeignKey("lineages.id"))
    name: Mapped[str]
    hint: Mapped[str]
    digest: Mapped[bytes] = mapped_column(unique=True)
    role: Mapped[str]
    capture: Mapped[bool] = mapped_column(server_default=text("true"))
    on_stale: Mapped[str] = mapped_column(server_default=text("'serve'"))
    sampling: Mapped[dict[str, Any] | None]
    limits: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = _now()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    __table_args__ = (
        _one_of("role", "agent", "rollout", "admin"),
        _one_of("on_stale", "serve", "reject"),
        CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
    )


class Session(Base):
    __tablename__ = "sessions"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    key_id: Mapped[UUID]
    lineage_id: Mapped[UUID]
    external_id: Mapped[str | None]
    resolved_by: Mapped[str]
    ambiguous: Mapped[bool] = mapped_column(server_default=text("false"))
    client: Mapped[str] = mapped_column(server_default=text("''"))
    end_user: Mapped[str | None]
    model: Mapped[str]
    parent_session_id: Mapped[UUID | None]
    status: Mapped[str] = mapped_column(server_default=text("'open'"))
    end_reason: Mapped[str | None]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    __table_args__ = (
        _one_of("status", "open", "closed"),
        Index(
            "sessions_external",
            "tenant_id",
            "external_id",
            unique=True,
            postgresql_where=text("external_id IS NOT NULL"),
        ),
        Index("sessions_recent", "tenant_id", "last_seen", "id"),
        Index("sessions_idle", "last_seen", postgresql_where=text("status = 'open'")),
        Index(
            "sessions_end_user",
            "tenant_id",
            "end_user",
            postgresql_where=text("end_user IS NOT NULL"),
        ),
        Index(
            "sessions_parent",
            "parent_session_id",
            postgresql_where=text("parent_session_id IS NOT NULL"),
        ),
    )


class Turn(Base):
    """One reply and what it was asked for; a tree by `parent_id`.

    `delivered` is false where the client left before the end; `response_store` is the Responses
    API's `store`: whether the client may continue from the reply by its id. `group_id` names
    turns that answer the same task; a `redacted` turn is judged and never trained, and has no ids.
    `kept` are the ids kept by top-k/top-p where the engine tells them. `response_fields` is what
    a response that is read by its id repeats of its request and no other column has. Once its
    time is over, the words of a turn are emptied (`text_cleared`) and its ids (`tokens_cleared`);
    lengths stay.
    """

    __tablename__ = "turns"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    session_id: Mapped[UUID]
    lineage_id: Mapped[UUID]
    parent_id: Mapped[UUID | None]
    depth: Mapped[int]
    branch_reason: Mapped[str | None]
    retry_of: Mapped[UUID | None]
    kind: Mapped[str]
    kind_rule: Mapped[str]
    kind_confidence: Mapped[float]
    resolve_rule: Mapped[str]
    dialect: Mapped[str]
    model: Mapped[str]
    engine: Mapped[str]
    request_hash: Mapped[bytes]
    chain_hash: Mapped[bytes]
    message_count: Mapped[int]
    messages: Mapped[list[Any]]
    tools: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    tools_hash: Mapped[bytes]
    reply: Mapped[dict[str, Any]]
    prompt_len: Mapped[int]
    shared_len: Mapped[int]
    completion_len: Mapped[int]
    prompt_ids: Mapped[bytes]
    sampled_ids: Mapped[bytes]
    logprobs: Mapped[bytes]
    spans: Mapped[list[Any]]
    version_min: Mapped[int | None] = mapped_column(BigInteger)
    version_max: Mapped[int | None] = mapped_column(BigInteger)
    sampling: Mapped[dict[str, Any]]
    finish_reason: Mapped[str]
    finish_detail: Mapped[str | None]
    trainable: Mapped[bool]
    untrainable_reason: Mapped[str | None]
    stream_mismatch: Mapped[bool] = mapped_column(server_default=text("false"))
    cached_tokens: Mapped[int]
    queued_ms: Mapped[float]
    first_token_ms: Mapped[float | None]
    total_ms: Mapped[float]
    idempotency_key: Mapped[str | None]
    delivered: Mapped[bool] = mapped_column(server_default=text("true"))
    response_store: Mapped[bool] = mapped_column(server_default=text("true"))
    created_at: Mapped[datetime]
    committed_at: Mapped[datetime] = _now()
    group_id: Mapped[str | None]
    reasoning_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    redacted: Mapped[bool] = mapped_column(server_default=text("false"))
    kept: Mapped[bytes | None]
    response_fields: Mapped[dict[str, Any] | None]
    text_cleared: Mapped[bool] = mapped_column(server_default=text("false"))
    tokens_cleared: Mapped[bool] = mapped_column(server_default=text("false"))
    __table_args__ = (
        _one_of("kind", "main", "side", "unknown"),
        _one_of("finish_reason", "stop", "length", "tool_calls", "abort"),
        CheckConstraint(
            "tokens_cleared OR octet_length(prompt_ids) = 4 * (prompt_len - shared_len)",
            name="prompt_ids_length",
        ),
        CheckConstraint("shared_len BETWEEN 0 AND prompt_len", name="shared_is_a_prefix"),
        CheckConstraint(
            "tokens_cleared OR octet_length(sampled_ids) = 4 * completion_len",
            name="sampled_ids_length",
        ),
        CheckConstraint(
            "NOT trainable OR octet_length(logprobs) = octet_length(sampled_ids)",
            name="trainable_has_logprobs",
        ),
        CheckConstraint(
            "NOT trainable OR (completion_len > 0 AND prompt_len > 0 AND version_min IS NOT NULL"
            " AND jsonb_array_length(spans) > 0"
            " AND (spans -> -1 ->> 2)::int = completion_len)",
            name="trainable_has_tokens",
        ),
        CheckConstraint("trainable = (untrainable_reason IS NULL)", name="untrainable_says_why"),
        CheckConstraint("octet_length(chain_hash) = 32", name="chain_hash_is_sha256"),
        Index("turns_chain", "tenant_id", "chain_hash"),
        Index("turns_request", "tenant_id", "request_hash", "created_at"),
        Index("turns_session", "session_id", "id"),
        Index("turns_parent", "parent_id"),
        Index(
            "turns_group",
            "lineage_id",
            "group_id",
            postgresql_where=text("group_id IS NOT NULL"),
        ),
    )


class Echo(Base):
    """What a client sends back of a turn's reply, in the normal form of `resolve.echoes`.

    Ids of tool calls are unique; an outline of the conversation may be that of several turns.
    """

    __tablename__ = "echoes"
    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    turn_id: Mapped[UUID] = mapped_column(primary_key=True)
    __table_args__ = (Index("echoes_turn", "turn_id"),)


class NextState(Base):
    """All messages that followed a turn's reply; the first follower wins.

    Where the user discarded the reply and went another way from before it (`how` is rolled_back),
    the messages are those that took the place of the turn's own.
    """

    __tablename__ = "next_states"
    turn_id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    following_id: Mapped[UUID]
    messages: Mapped[list[Any]]
    role: Mapped[str]
    arrived_at: Mapped[datetime]
    how: Mapped[str] = mapped_column(server_default=text("'continued'"))
    __table_args__ = (_one_of("how", "continued", "rolled_back"),)


class Feedback(Base):
    """What a person or an environment says of a turn.

    Of a whole session: a row for each of its main-line turns, with `session_id` and the discount
    by which the score was spread.
    """

    __tablename__ = "feedback"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    turn_id: Mapped[UUID]
    score: Mapped[float]
    body: Mapped[str] = mapped_column("text", server_default=text("''"))
    source: Mapped[str]
    idempotency_key: Mapped[str | None]
    created_at: Mapped[datetime] = _now()
    session_id: Mapped[UUID | None]
    discount: Mapped[float | None]
    __table_args__ = (
        CheckConstraint("score BETWEEN -1 AND 1", name="score_in_range"),
        CheckConstraint("discount IS NULL OR discount BETWEEN 0 AND 1", name="discount_in_range"),
        Index("feedback_turn", "turn_id"),
        Index(
            "feedback_once",
            "tenant_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )


class Judgement(Base):
    """A judging job and, once done, its result. A later round judges the turn again."""

    __tablename__ = "judgements"
    turn_id: Mapped[UUID] = mapped_column(primary_key=True)
    round: Mapped[int] = mapped_column(SmallInteger, primary_key=True, server_default=text("1"))
    tenant_id: Mapped[UUID]
    state: Mapped[str] = mapped_column(server_default=text("'queued'"))
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    lease_owner: Mapped[UUID | None]
    lease_until: Mapped[datetime | None]
    run_after: Mapped[datetime] = _now()
    judge: Mapped[str | None]
    rule: Mapped[str | None]
    score: Mapped[float | None]
    confidence: Mapped[float | None]
    reason: Mapped[str | None]
    votes: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    hint: Mapped[str | None]
    created_at: Mapped[datetime] = _now()
    done_at: Mapped[datetime | None]
    usage: Mapped[dict[str, Any] | None]
    __table_args__ = (
        _one_of("state", "queued", "leased", "done", "skipped", "dead"),
        CheckConstraint("score IS NULL OR score BETWEEN -1 AND 1", name="score_in_range"),
        Index(
            "judgements_open",
            "run_after",
            postgresql_where=text("state IN ('queued', 'leased')"),
        ),
    )


class Teaching(Base):
    """What a teacher that was given the hint says of a turn's sampled ids, at temperature 1.

    `logprobs` is aligned with the turn's sampled ids; `top_ids` and `top_logprobs` hold `top_k`
    entries a token, row by row. `version` is the teacher's, None where it is a fixed model.
    """

    __tablename__ = "teachings"
    turn_id: Mapped[UUID] = mapped_column(primary_key=True)
    round: Mapped[int] = mapped_column(SmallInteger, primary_key=True, server_default=text("1"))
    tenant_id: Mapped[UUID]
    teacher: Mapped[str]
    lineage_id: Mapped[UUID | None]
    version: Mapped[int | None] = mapped_column(BigInteger)
    model: Mapped[str]
    hint: Mapped[str]
    prompt_len: Mapped[int]
    completion_len: Mapped[int]
    top_k: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    logprobs: Mapped[bytes]
    top_ids: Mapped[bytes] = mapped_column(server_default=text("'\\x'::bytea"))
    top_logprobs: Mapped[bytes] = mapped_column(server_default=text("'\\x'::bytea"))
    created_at: Mapped[datetime] = _now()
    __table_args__ = (
        _one_of("teacher", "base", "fixed", "live"),
        CheckConstraint("octet_length(logprobs) = 4 * completion_len", name="logprobs_length"),
        CheckConstraint(
            "octet_length(top_ids) = 4 * top_k * completion_len"
            " AND octet_length(top_logprobs) = octet_length(top_ids)",
            name="top_length",
        ),
    )


class Sample(Base):
    """A judged turn as training data, at most one a turn, method and lineage."""

    __tablename__ = "samples"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    turn_id: Mapped[UUID]
    session_id: Mapped[UUID]
    lineage_id: Mapped[UUID]
    method: Mapped[str]
    score: Mapped[float]
    weight: Mapped[float] = mapped_column(server_default=text("1"))
    version_min: Mapped[int] = mapped_column(BigInteger)
    arrived_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(server_default=text("'ready'"))
    reason: Mapped[str | None]
    lease_epoch: Mapped[int | None] = mapped_column(BigInteger)
    step_id: Mapped[UUID | None]
    version_lag: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _now()
    group_id: Mapped[str | None]
    __table_args__ = (
        UniqueConstraint("turn_id", "method", "lineage_id", name="samples_once"),
        _one_of("state", "ready", "leased", "trained", "dropped"),
        Index(
            "samples_ready",
            "lineage_id",
            "arrived_at",
            postgresql_where=text("state IN ('ready', 'leased')"),
        ),
        Index("samples_step", "step_id"),
    )


class Verdict(Base):
    """How a main-line turn ended: trained toward a version, or not, and why."""

    __tablename__ = "verdicts"
    turn_id: Mapped[UUID] = mapped_column(primary_key=True)
    outcome: Mapped[str]
    reason: Mapped[str]
    step_id: Mapped[UUID | None]
    version: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _now()
    __table_args__ = (_one_of("outcome", "trained", "dropped", "untrainable", "unscored"),)


class TrainStep(Base):
    __tablename__ = "train_steps"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    lineage_id: Mapped[UUID] = mapped_column(ForeignKey("lineages.id"))
    epoch: Mapped[int] = mapped_column(BigInteger)
    from_version: Mapped[int] = mapped_column(BigInteger)
    to_version: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any]]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("lineage_id", "to_version", name="train_steps_once"),)


class Policy(Base):
    """One version: a directory of weights, named here before any engine is given it."""

    __tablename__ = "policies"
    lineage_id: Mapped[UUID] = mapped_column(ForeignKey("lineages.id"), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    parent_version: Mapped[int | None] = mapped_column(BigInteger)
    kind: Mapped[str]
    uri: Mapped[str | None]
    checksum: Mapped[str | None]
    checkpoint: Mapped[str | None]
    state: Mapped[str]
    reason: Mapped[str | None]
    step_id: Mapped[UUID | None]
    created_at: Mapped[datetime] = _now()
    live_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    gate: Mapped[dict[str, Any] | None]
    __table_args__ = (
        ForeignKeyConstraint(
            ["lineage_id", "parent_version"], ["policies.lineage_id", "policies.version"]
        ),
        _one_of("kind", "base", "lora", "full"),
        _one_of("state", "candidate", "canary", "live", "retired", "rolled_back", "refused"),
        Index(
            "policies_one_live",
            "lineage_id",
            unique=True,
            postgresql_where=text("state = 'live'"),
        ),
    )


class Swap(Base):
    """One engine moved from one version to another; `outcome` says how it went."""

    __tablename__ = "swaps"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    lineage_id: Mapped[UUID]
    engine: Mapped[str]
    from_version: Mapped[int] = mapped_column(BigInteger)
    to_version: Mapped[int] = mapped_column(BigInteger)
    outcome: Mapped[str]
    detail: Mapped[str | None]
    load_ms: Mapped[float | None]
    pause_ms: Mapped[float | None]
    probe_max_diff: Mapped[float | None]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]


class Worker(Base):
    """A process that is alive: gateway, judge or trainer. `detail` holds what it reports."""

    __tablename__ = "workers"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    revision: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    started_at: Mapped[datetime] = _now()
    heartbeat_at: Mapped[datetime] = _now()


class Event(Base):
    """What operators want to find later: promotions, drops, restarts, refusals."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[datetime] = _now()
    name: Mapped[str]
    tenant_id: Mapped[UUID | None]
    detail: Mapped[dict[str, Any]]


class Setting(Base):
    """What operators change at run time, by name; `version` counts the changes."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[dict[str, Any]]
    version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    updated_at: Mapped[datetime] = _now()


class AuditEntry(Base):
    """Who did what to whom: kept for good, without a prompt, a reply or a secret.

    `actor` is the id of an API key, `cli` or `job`; without a tenant it is of the installation.
    """

    __tablename__ = "audit_entries"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None]
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = _now()
    __table_args__ = (Index("audit_entries_tenant", "tenant_id", "id"),)


class Erasure(Base):
    """What was erased and may still come in late from a spool: by SHA-256, and only for a while."""

    __tablename__ = "erasures"
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    erased_at: Mapped[datetime] = _now()
    __table_args__ = (CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),)


class RetentionMark(Base):
    """How far retention has come: no turn of the tenant up to `cleared_to` has the part left."""

    __tablename__ = "retention_marks"
    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    part: Mapped[str] = mapped_column(primary_key=True)
    cleared_to: Mapped[UUID]
    updated_at: Mapped[datetime] = _now()
    __table_args__ = (_one_of("part", "text", "tokens", "scores", "turns"),)
