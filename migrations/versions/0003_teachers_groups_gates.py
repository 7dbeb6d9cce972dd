"""Keep what teachers say, groups, rollbacks, canaries, what operators set, and what is cleared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")
_TIME = sa.TIMESTAMP(timezone=True)

#: Indexes of tables that may be large: `env.py` builds them after the commit, others going on.
CONCURRENTLY = {
    "sessions_end_user": "sessions (tenant_id, end_user) WHERE end_user IS NOT NULL",
    "sessions_parent": "sessions (parent_session_id) WHERE parent_session_id IS NOT NULL",
    "turns_group": "turns (lineage_id, group_id) WHERE group_id IS NOT NULL",
    "echoes_turn": "echoes (turn_id)",
}

#: Tables that grow with every turn: what is cleared or deleted of them is cleaned up after early.
_LARGE = ("turns", "next_states", "judgements")
_CLEANED = ("autovacuum_vacuum_scale_factor", "autovacuum_vacuum_insert_scale_factor")

#: CHECKs of `turns` that let go of ids whose time is over.
_LENGTHS = {
    "prompt_ids_length": "octet_length(prompt_ids) = 4 * (prompt_len - shared_len)",
    "sampled_ids_length": "octet_length(sampled_ids) = 4 * completion_len",
}


def upgrade() -> None:
    # Nullable, or with a constant default: no table is rewritten.
    op.add_column("turns", sa.Column("group_id", sa.Text(), nullable=True))
    op.add_column(
        "turns",
        sa.Column("reasoning_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column(
        "turns",
        sa.Column("redacted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("turns", sa.Column("kept", sa.LargeBinary(), nullable=True))
    op.execute("ALTER TABLE turns ALTER COLUMN kept SET STORAGE EXTERNAL")
    op.add_column("turns", sa.Column("response_fields", JSONB(), nullable=True))
    for name in ("text_cleared", "tokens_cleared"):
        op.add_column(
            "turns", sa.Column(name, sa.Boolean(), server_default=sa.text("false"), nullable=False)
        )
    for name, condition in _LENGTHS.items():
        op.drop_constraint(name, "turns")
        _check_later("turns", name, f"tokens_cleared OR {condition}")
    for table in _LARGE:
        op.execute(f"ALTER TABLE {table} SET ({', '.join(f'{name} = 0.02' for name in _CLEANED)})")
    op.add_column(
        "next_states",
        sa.Column("how", sa.Text(), server_default=sa.text("'continued'"), nullable=False),
    )
    _check_later("next_states", "how_known", "how IN ('continued', 'rolled_back')")
    op.add_column("feedback", sa.Column("session_id", sa.UUID(), nullable=True))
    op.add_column("feedback", sa.Column("discount", sa.REAL(), nullable=True))
    _check_later("feedback", "discount_in_range", "discount IS NULL OR discount BETWEEN 0 AND 1")
    op.add_column("judgements", sa.Column("usage", JSONB(), nullable=True))
    op.add_column("samples", sa.Column("group_id", sa.Text(), nullable=True))
    op.add_column("tenants", sa.Column("settings", JSONB(), nullable=True))
    for name in ("canary_version", "pinned_version"):
        op.add_column("lineages", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column(
        "lineages",
        sa.Column("canary_share", sa.REAL(), server_default=sa.text("0"), nullable=False),
    )
    _check_later("lineages", "canary_share_in_range", "canary_share BETWEEN 0 AND 1")
    op.add_column("policies", sa.Column("gate", JSONB(), nullable=True))
    op.create_table(
        "teachings",
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.Column("round", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("teacher", sa.Text(), nullable=False),
        sa.Column("lineage_id", sa.UUID(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("prompt_len", sa.Integer(), nullable=False),
        sa.Column("completion_len", sa.Integer(), nullable=False),
        sa.Column("top_k", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column(
            "top_ids", sa.LargeBinary(), server_default=sa.text("'\\x'::bytea"), nullable=False
        ),
        sa.Column(
            "top_logprobs", sa.LargeBinary(), server_default=sa.text("'\\x'::bytea"), nullable=False
        ),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "round"),
        sa.CheckConstraint("teacher IN ('base', 'fixed', 'live')", name="teacher_known"),
        sa.CheckConstraint("octet_length(logprobs) = 4 * completion_len", name="logprobs_length"),
        sa.CheckConstraint(
            "octet_length(top_ids) = 4 * top_k * completion_len"
            " AND octet_length(top_logprobs) = octet_length(top_ids)",
            name="top_length",
        ),
    )
    for column in ("logprobs", "top_ids", "top_logprobs"):
        op.execute(f"ALTER TABLE teachings ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", JSONB(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("updated_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", JSONB(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_entries_tenant", "audit_entries", ["tenant_id", "id"])
    op.create_table(
        "erasures",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("erased_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sa.CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
    )
    op.create_table(
        "retention_marks",
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("cleared_to", sa.UUID(), nullable=False),
        sa.Column("updated_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "part"),
        sa.CheckConstraint("part IN ('text', 'tokens', 'scores', 'turns')", name="part_known"),
    )


def _check_later(table: str, name: str, condition: str) -> None:
    """A CHECK without a long lock: `env.py` looks at old rows once this is committed."""
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID")


def downgrade() -> None:
    # The revision before knows no ids that are gone: such turns say that they have none. Rows
    # first, so that no table is locked meanwhile.
    op.execute(
        "UPDATE turns SET prompt_len = shared_len, completion_len = 0, trainable = false,"
        " untrainable_reason = coalesce(untrainable_reason, 'retention') WHERE tokens_cleared"
    )
    for table in _LARGE:
        op.execute(f"ALTER TABLE {table} RESET ({', '.join(_CLEANED)})")
    for name in CONCURRENTLY:
        op.execute(f"DROP INDEX IF EXISTS {name}")
    for name, condition in _LENGTHS.items():
        op.drop_constraint(name, "turns")
        _check_later("turns", name, condition)
    for table in ("retention_marks", "erasures", "audit_entries", "settings", "teachings"):
        op.drop_table(table)
    for table, columns in {
        "policies": ("gate",),
        "lineages": ("canary_share", "pinned_version", "canary_version"),
        "tenants": ("settings",),
        "samples": ("group_id",),
        "judgements": ("usage",),
        "feedback": ("discount", "session_id"),
        "next_states": ("how",),
        "turns": (
            "tokens_cleared",
            "text_cleared",
            "response_fields",
            "kept",
            "redacted",
            "reasoning_tokens",
            "group_id",
        ),
    }.items():
        for column in columns:
            op.drop_column(table, column)
