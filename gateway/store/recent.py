"""The turns that this process stored last, as candidates: found while Postgres is away.

Bounded; what it knows is merged into what Postgres says, since a spooled turn is not there yet.

While all is well nobody asks, and every turn is kept: so it is kept packed, in a few hundred bytes,
and an index is made of all of them, in about 0.1 s for 10,000, when one is needed.
"""

from __future__ import annotations

from collections import deque
from uuid import UUID

import msgspec

from gateway.records import Candidate, SessionRecord, TurnRecord
from gateway.store.recent_index import Kept, RecentIndex
from gateway.store.wanted import Wanted

_pack = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_unpack = msgspec.msgpack.Decoder(Kept).decode


class RecentTurns:
    """At most `limit` turns and as many session names, the oldest forgotten first.

    The index stays until as many have come since it was needed last.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: As they are where a text cannot be packed.
        self._turns: deque[bytes | Kept] = deque(maxlen=limit)
        self._index: RecentIndex | None = None
        self._unneeded = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: TurnRecord, session: SessionRecord, *, stored: bool = True) -> None:
        """Keep a turn; `stored` says that Postgres has it."""
        kept = Kept(
            turn.tenant_id,
            _candidate(turn, session),
            turn.echoes,
            session.external_id,
            turn.parent_id is not None and turn.retry_of is None,
        )
        try:
            self._turns.append(_pack(kept))
        except UnicodeEncodeError:
            self._turns.append(kept)
        if self._index is not None:
            self._index.add(kept)
            self._unneeded += 1
            if self._unneeded >= self._limit:
                self._index = None
        if not stored:
            self._needed()

    def clear(self) -> None:
        """Forget all of it."""
        self._turns.clear()
        self._index = None

    def named(self, tenant_id: UUID, name: str) -> UUID | None:
        """The session of a name."""
        return self._needed().named(tenant_id, name)

    def find(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """The turns that Postgres would find, as far as they are known here."""
        return self._needed().find(tenant_id, wanted)

    def merged(self, tenant_id: UUID, wanted: Wanted, stored: list[Candidate]) -> list[Candidate]:
        """What Postgres found together with what only this process knows yet."""
        return stored if self._index is None else self._index.merged(tenant_id, wanted, stored)

    def unstored_name(self, tenant_id: UUID, name: str) -> UUID | None:
        """The session of a name, where Postgres may not have it yet."""
        return None if self._index is None else self._index.named(tenant_id, name)

    def _needed(self) -> RecentIndex:
        self._unneeded = 0
        if self._index is None:
            self._index = RecentIndex(self._limit)
            for kept in self._turns:
                self._index.add(kept if isinstance(kept, Kept) else _unpack(kept))
        return self._index


def _candidate(turn: TurnRecord, session: SessionRecord) -> Candidate:
    return Candidate(
        turn_id=turn.id,
        session_id=turn.session_id,
        lineage_id=turn.lineage_id,
        parent_id=turn.parent_id,
        chain_hash=turn.chain_hash,
        depth=turn.depth,
        message_count=turn.message_count,
        kind=turn.kind,
        tools_hash=turn.tools_hash,
        finish_reason=turn.finish_reason,
        continued=False,
        created_at=turn.created_at,
        request_hash=turn.request_hash,
        idempotency_key=turn.idempotency_key,
        delivered=turn.delivered,
        user=session.user,
        parent_session_id=session.parent_session_id,
        grammar=turn.sampling.grammar is not None,
        max_tokens=turn.sampling.max_tokens,
    )
