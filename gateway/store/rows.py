"""Every kind of record as rows of its table."""

from __future__ import annotations

from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord
from gateway.store.packing import as_float32, pack_ids, pack_kept, pack_logprobs
from gateway.store.table import Column, Table


def _columns(since: str = "", **kinds: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, since) for name, kind in kinds.items())


def _session(record: SessionRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "tenant_id": record.tenant_id,
        "key_id": record.key_id,
        "lineage_id": record.lineage_id,
        "external_id": record.external_id,
        "resolved_by": record.resolved_by,
        "ambiguous": record.ambiguous,
        "client": record.client,
        "end_user": record.user,
        "model": record.model,
        "parent_session_id": record.parent_session_id,
        "first_seen": record.seen_at,
        "last_seen": record.seen_at,
    }


def _turn(record: TurnRecord) -> dict[str, object]:
    usage, timings = record.usage, record.timings
    spans = [(span.version, span.start, span.end) for span in record.spans]
    return {
        "id": record.id,
        "tenant_id": record.tenant_id,
        "session_id": record.session_id,
        "lineage_id": record.lineage_id,
        "parent_id": record.parent_id,
        "depth": record.depth,
        "branch_reason": record.branch_reason,
        "retry_of": record.retry_of,
        "kind": record.kind,
        "kind_rule": record.kind_rule,
        "kind_confidence": record.kind_confidence,
        "resolve_rule": record.resolve_rule,
        "dialect": record.dialect,
        "model": record.model,
        "engine": record.engine,
        "request_hash": record.request_hash,
        "chain_hash": record.chain_hash,
        "message_count": record.message_count,
        "messages": record.messages,
        "tools": record.tools,
        "tools_hash": record.tools_hash,
        "reply": record.reply,
        "prompt_len": record.shared_len + len(record.prompt_ids),
        "shared_len": record.shared_len,
        "completion_len": len(record.sampled_ids),
        "prompt_ids": pack_ids(record.prompt_ids),
        "sampled_ids": pack_ids(record.sampled_ids),
        "logprobs": pack_logprobs(record.logprobs),
        "spans": spans,
        "version_min": min(spans)[0] if spans else None,
        "version_max": max(spans)[0] if spans else None,
        # What was set; the rest was left to the engine.
        "sampling": record.sampling,
        "finish_reason": record.finish_reason,
        "finish_detail": record.finish_detail,
        "trainable": record.trainable,
        "untrainable_reason": record.untrainable_reason,
        "stream_mismatch": record.stream_mismatch,
        "cached_tokens": usage.cached_tokens,
        "queued_ms": timings.queued_ms,
        "first_token_ms": timings.first_token_ms,
        "total_ms": timings.total_ms,
        "created_at": record.created_at,
        "idempotency_key": record.idempotency_key,
        "delivered": record.delivered,
        "response_store": record.response_store,
        "group_id": record.group_id,
        "reasoning_tokens": record.reasoning_tokens,
        "redacted": record.redacted,
        "kept": None if record.kept is None else pack_kept(record.kept),
        "response_fields": record.response_fields,
        "echoes": record.echoes,
    }


def _next_state(record: NextState) -> dict[str, object]:
    return {
        "turn_id": record.turn_id,
        "tenant_id": record.tenant_id,
        "following_id": record.following_id,
        "messages": record.messages,
        "role": record.role,
        "arrived_at": record.arrived_at,
        "how": record.how,
        "judge": record.judge,
    }


def _feedback(record: FeedbackRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "tenant_id": record.tenant_id,
        "turn_id": record.turn_id,
        "score": as_float32(record.score),
        "text": record.text,
        "source": record.source,
        "idempotency_key": record.idempotency_key,
        "session_id": record.session_id,
        "discount": as_float32(record.discount),
    }


SESSIONS: Table[SessionRecord] = Table(
    "sessions",
    _columns(
        id="uuid",
        tenant_id="uuid",
        key_id="uuid",
        lineage_id="uuid",
        external_id="text",
        resolved_by="text",
        ambiguous="bool",
        client="text",
        end_user="text",
        model="text",
        parent_session_id="uuid",
        first_seen="timestamptz",
        last_seen="timestamptz",
    ),
    _session,
)

TURNS: Table[TurnRecord] = Table(
    "turns",
    _columns(
        id="uuid",
        tenant_id="uuid",
        session_id="uuid",
        lineage_id="uuid",
        parent_id="uuid",
        depth="int4",
        branch_reason="text",
        retry_of="uuid",
        kind="text",
        kind_rule="text",
        kind_confidence="float4",
        resolve_rule="text",
        dialect="text",
        model="text",
        engine="text",
        request_hash="bytea",
        chain_hash="bytea",
        message_count="int4",
        messages="jsonb",
        tools="jsonb",
        tools_hash="bytea",
        reply="jsonb",
        prompt_len="int4",
        shared_len="int4",
        completion_len="int4",
        prompt_ids="bytea",
        sampled_ids="bytea",
        logprobs="bytea",
        spans="jsonb",
        version_min="int8",
        version_max="int8",
        sampling="jsonb",
        finish_reason="text",
        finish_detail="text",
        trainable="bool",
        untrainable_reason="text",
        stream_mismatch="bool",
        cached_tokens="int4",
        queued_ms="float4",
        first_token_ms="float4",  # noqa: S106 - no password
        total_ms="float4",
        created_at="timestamptz",
        idempotency_key="text",
        delivered="bool",
        response_store="bool",
    )
    + _columns(
        "0003",
        group_id="text",
        reasoning_tokens="int4",
        redacted="bool",
        kept="bytea",
        response_fields="jsonb",
    ),
    _turn,
    beside=_columns(echoes="json"),
)

NEXT_STATES: Table[NextState] = Table(
    "next_states",
    _columns(
        turn_id="uuid",
        tenant_id="uuid",
        following_id="uuid",
        messages="jsonb",
        role="text",
        arrived_at="timestamptz",
    )
    + _columns("0003", how="text"),
    _next_state,
    beside=_columns(judge="bool"),
)

FEEDBACK: Table[FeedbackRecord] = Table(
    "feedback",
    _columns(
        id="uuid",
        tenant_id="uuid",
        turn_id="uuid",
        score="float4",
        text="text",
        source="text",
        idempotency_key="text",
    )
    + _columns("0003", session_id="uuid", discount="float4"),
    _feedback,
)
