"""Create the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: Read whole or not at all, and not compressible: out of line, as they are.
_EXTERNAL = (("turns", "prompt_ids"), ("turns", "sampled_ids"), ("turns", "logprobs"))

#: Large JSON; lz4 costs a fraction of pglz's time.
_LZ4 = (
    ("turns", "messages"),
    ("turns", "tools"),
    ("turns", "reply"),
    ("next_states", "messages"),
    ("judgements", "votes"),
)


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=True),
        sa.Column("detail", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("score", sa.REAL(), nullable=False),
        sa.Column("text", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint("score BETWEEN -1 AND 1", name="score_in_range"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "feedback_once",
        "feedback",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index("feedback_turn", "feedback", ["turn_id"])
    op.create_table(
        "judgements",
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("round", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", sa.UUID(), nullable=True),
        sa.Column("lease_until", TIMESTAMP(timezone=True), nullable=True),
        sa.Column(
            "run_after", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("judge", sa.Text(), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("score", sa.REAL(), nullable=True),
        sa.Column("confidence", sa.REAL(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("votes", JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("done_at", TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'done', 'skipped', 'dead')", name="state_known"
        ),
        sa.CheckConstraint("score IS NULL OR score BETWEEN -1 AND 1", name="score_in_range"),
        sa.PrimaryKeyConstraint("turn_id", "round"),
    )
    op.create_index(
        "judgements_open",
        "judgements",
        ["run_after"],
        postgresql_where=sa.text("state IN ('queued', 'leased')"),
    )
    op.create_table(
        "lineages",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("trains", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("live_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint("kind IN ('lora', 'full')", name="kind_known"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "next_states",
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("following_id", sa.UUID(), nullable=False),
        sa.Column("messages", JSONB(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("arrived_at", TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    op.create_table(
        "samples",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("session_id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("score", sa.REAL(), nullable=False),
        sa.Column("weight", sa.REAL(), server_default=sa.text("1"), nullable=False),
        sa.Column("version_min", sa.BigInteger(), nullable=False),
        sa.Column("arrived_at", TIMESTAMP(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'ready'"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=True),
        sa.Column("step_id", sa.UUID(), nullable=True),
        sa.Column("version_lag", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint(
            "state IN ('ready', 'leased', 'trained', 'dropped')", name="state_known"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("turn_id", "method", "lineage_id", name="samples_once"),
    )
    op.create_index(
        "samples_ready",
        "samples",
        ["lineage_id", "arrived_at"],
        postgresql_where=sa.text("state IN ('ready', 'leased')"),
    )
    op.create_index("samples_step", "samples", ["step_id"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("key_id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("resolved_by", sa.Text(), nullable=False),
        sa.Column("ambiguous", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("client", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("parent_session_id", sa.UUID(), nullable=True),
        sa.Column("status", sa.Text(), server_default=sa.text("'open'"), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("first_seen", TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_seen", TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('open', 'closed')", name="status_known"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "sessions_external",
        "sessions",
        ["tenant_id", "external_id"],
        unique=True,
        postgresql_where=sa.text("external_id IS NOT NULL"),
    )
    op.create_index(
        "sessions_idle", "sessions", ["last_seen"], postgresql_where=sa.text("status = 'open'")
    )
    op.create_index("sessions_recent", "sessions", ["tenant_id", "last_seen", "id"])
    op.create_table(
        "swaps",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("from_version", sa.BigInteger(), nullable=False),
        sa.Column("to_version", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("load_ms", sa.REAL(), nullable=True),
        sa.Column("pause_ms", sa.REAL(), nullable=True),
        sa.Column("probe_max_diff", sa.REAL(), nullable=True),
        sa.Column("started_at", TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("session_id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("parent_id", sa.UUID(), nullable=True),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("branch_reason", sa.Text(), nullable=True),
        sa.Column("retry_of", sa.UUID(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("kind_rule", sa.Text(), nullable=False),
        sa.Column("kind_confidence", sa.REAL(), nullable=False),
        sa.Column("resolve_rule", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("messages", JSONB(), nullable=False),
        sa.Column("tools", JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("tools_hash", sa.LargeBinary(), nullable=False),
        sa.Column("reply", JSONB(), nullable=False),
        sa.Column("prompt_len", sa.Integer(), nullable=False),
        sa.Column("shared_len", sa.Integer(), nullable=False),
        sa.Column("completion_len", sa.Integer(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("sampled_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("spans", JSONB(), nullable=False),
        sa.Column("version_min", sa.BigInteger(), nullable=True),
        sa.Column("version_max", sa.BigInteger(), nullable=True),
        sa.Column("sampling", JSONB(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("finish_detail", sa.Text(), nullable=True),
        sa.Column("trainable", sa.Boolean(), nullable=False),
        sa.Column("untrainable_reason", sa.Text(), nullable=True),
        sa.Column("stream_mismatch", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("queued_ms", sa.REAL(), nullable=False),
        sa.Column("first_token_ms", sa.REAL(), nullable=True),
        sa.Column("total_ms", sa.REAL(), nullable=False),
        sa.Column("created_at", TIMESTAMP(timezone=True), nullable=False),
        sa.Column(
            "committed_at",
            TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "finish_reason IN ('stop', 'length', 'tool_calls', 'abort')", name="finish_reason_known"
        ),
        sa.CheckConstraint("kind IN ('main', 'side', 'unknown')", name="kind_known"),
        sa.CheckConstraint(
            "NOT trainable OR (completion_len > 0 AND prompt_len > 0 AND version_min IS NOT NULL"
            " AND jsonb_array_length(spans) > 0"
            " AND (spans -> -1 ->> 2)::int = completion_len)",
            name="trainable_has_tokens",
        ),
        sa.CheckConstraint(
            "NOT trainable OR octet_length(logprobs) = octet_length(sampled_ids)",
            name="trainable_has_logprobs",
        ),
        sa.CheckConstraint("octet_length(chain_hash) = 32", name="chain_hash_is_sha256"),
        sa.CheckConstraint(
            "octet_length(prompt_ids) = 4 * (prompt_len - shared_len)", name="prompt_ids_length"
        ),
        sa.CheckConstraint(
            "octet_length(sampled_ids) = 4 * completion_len", name="sampled_ids_length"
        ),
        sa.CheckConstraint("shared_len BETWEEN 0 AND prompt_len", name="shared_is_a_prefix"),
        sa.CheckConstraint("trainable = (untrainable_reason IS NULL)", name="untrainable_says_why"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("turns_chain", "turns", ["tenant_id", "chain_hash"])
    op.create_index("turns_parent", "turns", ["parent_id"])
    op.create_index("turns_request", "turns", ["tenant_id", "request_hash", "created_at"])
    op.create_index("turns_session", "turns", ["session_id", "id"])
    op.create_table(
        "verdicts",
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("step_id", sa.UUID(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint(
            "outcome IN ('trained', 'dropped', 'untrainable', 'unscored')", name="outcome_known"
        ),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("detail", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "started_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column(
            "heartbeat_at",
            TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("capture", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("on_stale", sa.Text(), server_default=sa.text("'serve'"), nullable=False),
        sa.Column("sampling", JSONB(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("expires_at", TIMESTAMP(timezone=True), nullable=True),
        sa.Column("revoked_at", TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("on_stale IN ('serve', 'reject')", name="on_stale_known"),
        sa.CheckConstraint("role IN ('agent', 'rollout', 'admin')", name="role_known"),
        sa.CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
        sa.ForeignKeyConstraint(
            ["lineage_id"],
            ["lineages.id"],
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "policies",
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("parent_version", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=True),
        sa.Column("checksum", sa.Text(), nullable=True),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("step_id", sa.UUID(), nullable=True),
        sa.Column(
            "created_at", TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("live_at", TIMESTAMP(timezone=True), nullable=True),
        sa.Column("ended_at", TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('base', 'lora', 'full')", name="kind_known"),
        sa.CheckConstraint(
            "state IN ('candidate', 'canary', 'live', 'retired', 'rolled_back', 'refused')",
            name="state_known",
        ),
        sa.ForeignKeyConstraint(
            ["lineage_id", "parent_version"],
            ["policies.lineage_id", "policies.version"],
        ),
        sa.ForeignKeyConstraint(
            ["lineage_id"],
            ["lineages.id"],
        ),
        sa.PrimaryKeyConstraint("lineage_id", "version"),
    )
    op.create_index(
        "policies_one_live",
        "policies",
        ["lineage_id"],
        unique=True,
        postgresql_where=sa.text("state = 'live'"),
    )
    op.create_table(
        "train_steps",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("from_version", sa.BigInteger(), nullable=False),
        sa.Column("to_version", sa.BigInteger(), nullable=False),
        sa.Column("metrics", JSONB(), nullable=False),
        sa.Column("started_at", TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", TIMESTAMP(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["lineage_id"],
            ["lineages.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("lineage_id", "to_version", name="train_steps_once"),
    )
    for table, column in _EXTERNAL:
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
    for table, column in _LZ4:
        # A server built without lz4 keeps its default.
        op.execute(
            f"DO $$ BEGIN ALTER TABLE {table} ALTER COLUMN {column} SET COMPRESSION lz4; "
            "EXCEPTION WHEN feature_not_supported THEN NULL; END $$"
        )


def downgrade() -> None:
    for table in (
        "train_steps",
        "policies",
        "api_keys",
        "workers",
        "verdicts",
        "turns",
        "tenants",
        "swaps",
        "sessions",
        "samples",
        "next_states",
        "lineages",
        "judgements",
        "feedback",
        "events",
    ):
        op.drop_table(table)
