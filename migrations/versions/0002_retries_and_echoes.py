"""Keep what tells retries apart, the ids that clients echo, and limits of keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nullable, or with a constant default: no table is rewritten.
    op.add_column("turns", sa.Column("idempotency_key", sa.Text(), nullable=True))
    op.add_column(
        "turns",
        sa.Column("delivered", sa.Boolean(), server_default=sa.text("true"), nullable=False),
    )
    op.add_column(
        "turns",
        sa.Column("response_store", sa.Boolean(), server_default=sa.text("true"), nullable=False),
    )
    op.add_column("api_keys", sa.Column("limits", JSONB(), nullable=True))
    op.create_table(
        "echoes",
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.UUID(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", "turn_id"),
    )


def downgrade() -> None:
    op.drop_table("echoes")
    op.drop_column("api_keys", "limits")
    op.drop_column("turns", "response_store")
    op.drop_column("turns", "delivered")
    op.drop_column("turns", "idempotency_key")
