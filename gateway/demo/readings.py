"""What the demo reads back from Postgres: only what the gateway, judge and trainer stored there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from gateway.store.database import Database

_FIRST_TURNS = """
SELECT k.name AS person, t.messages, t.reply, t.spans, t.completion_len, j.score
FROM turns t
JOIN sessions s ON s.id = t.session_id
JOIN api_keys k ON k.id = s.key_id
LEFT JOIN LATERAL (
    SELECT score FROM judgements
    WHERE turn_id = t.id AND state = 'done' ORDER BY round DESC LIMIT 1
) j ON true
WHERE t.lineage_id = $1 AND t.kind = ANY($2) AND t.parent_id IS NULL AND t.retry_of IS NULL
ORDER BY t.id
"""

_PUBLISHED = """
SELECT p.version, max(sw.load_ms) AS swap_ms
FROM policies p
LEFT JOIN swaps sw ON sw.lineage_id = p.lineage_id AND sw.to_version = p.version
WHERE p.lineage_id = $1 AND p.version > 0 AND p.live_at IS NOT NULL
GROUP BY p.version
"""

_LAGS = """
SELECT st.to_version, max(sa.version_lag) AS lag
FROM samples sa JOIN train_steps st ON st.id = sa.step_id
WHERE sa.lineage_id = $1 AND sa.state = 'trained'
GROUP BY st.to_version
"""

_WAITING = """
SELECT count(*) FROM turns t
JOIN next_states n ON n.turn_id = t.id
LEFT JOIN verdicts v ON v.turn_id = t.id
WHERE t.lineage_id = $1 AND t.kind = 'main' AND v.turn_id IS NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One stored turn that opened a conversation.

    `version` is the one that sampled all of its tokens, None where several did. `score` in
    [-1, 1] is the judge's, None until there is one. `tokens` counts the sampled ids.
    """

    person: str
    question: str
    reply: str
    version: int | None
    tokens: int
    score: float | None = None

    @property
    def cell(self) -> tuple[str, str]:
        """What is resampled together: the person and what they asked."""
        return self.person, self.question


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Everything at one moment. Swap times in ms and largest lags by the version they led to."""

    turns: tuple[Turn, ...] = ()
    control: tuple[Turn, ...] = ()
    facts: tuple[Turn, ...] = ()
    swap_ms: Mapping[int, float | None] = field(default_factory=dict)
    lag_max: Mapping[int, int] = field(default_factory=dict)
    waiting: int = 0

    @property
    def published(self) -> int:
        """How many versions went live, the base model not counted."""
        return len(self.swap_ms)

    @property
    def version(self) -> int:
        """The newest version that went live."""
        return max(self.swap_ms, default=0)


class Reader:
    """Reads one trained and one control lineage."""

    def __init__(self, database: Database, trained: UUID, control: UUID) -> None:
        self._database = database
        self._trained = trained
        self._control = control

    async def read(self) -> Readings:
        """One consistent look. Raises StoreUnavailable where Postgres is away."""
        async with (
            self._database.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            main, side = ["main", "unknown"], ["side"]
            turns = await connection.fetch(_FIRST_TURNS, self._trained, main)
            control = await connection.fetch(_FIRST_TURNS, self._control, main)
            facts = await connection.fetch(_FIRST_TURNS, self._trained, side)
            published = await connection.fetch(_PUBLISHED, self._trained)
            lags = await connection.fetch(_LAGS, self._trained)
            waiting = await connection.fetchval(_WAITING, self._trained)
        return Readings(
            turns=tuple(map(_turn, turns)),
            control=tuple(map(_turn, control)),
            facts=tuple(map(_turn, facts)),
            swap_ms={row["version"]: row["swap_ms"] for row in published},
            lag_max={row["to_version"]: row["lag"] for row in lags if row["lag"] is not None},
            waiting=waiting,
        )


def _turn(row: asyncpg.Record) -> Turn:
    versions = {version for version, *_ in _decoded(row["spans"])}
    return Turn(
        person=row["person"],
        question=_last_user(_decoded(row["messages"])),
        reply=_decoded(row["reply"]).get("content") or "",
        version=versions.pop() if len(versions) == 1 else None,
        tokens=row["completion_len"],
        score=row["score"],
    )


def _decoded(value: Any) -> Any:
    """JSONB as Python objects, whether or not the connection has a codec for it."""
    return json.loads(value) if isinstance(value, str) else value


def _last_user(messages: Sequence[Mapping[str, Any]]) -> str:
    asked = [message["content"] for message in messages if message.get("role") == "user"]
    return str(asked[-1]) if asked else ""
