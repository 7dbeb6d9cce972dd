"""The turns that this process stored last, as candidates: found while Postgres is away.

Bounded; what it knows is merged into what Postgres says, since a spooled turn is not there yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from uuid import UUID

from gateway.records import Candidate, SessionRecord, TurnRecord

#: The newest of those that have one key; more would tell nothing.
_MOST_OF_A_KEY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """By what stored turns are looked up, all of it inside one tenant.

    `chains` are hashes of prefixes, `echoes` keys of `resolve.echoes`; `request` is the hash of a
    body that was answered at `since` or later, `previous` a turn by its id.
    """

    chains: Sequence[bytes] = ()
    echoes: Sequence[str] = ()
    request: bytes | None = None
    since: float = 0.0
    previous: UUID | None = None


_Key = tuple[UUID, bytes | str | UUID]


class RecentTurns:
    """At most `limit` turns and as many session names, the oldest forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[UUID, tuple[Candidate, list[_Key]]] = OrderedDict()
        self._by_key: dict[_Key, dict[UUID, None]] = {}
        self._continued: OrderedDict[UUID, None] = OrderedDict()
        self._names: OrderedDict[tuple[UUID, str], UUID] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: TurnRecord, session: SessionRecord) -> None:
        """Keep a turn that was stored, and that it continues its parent."""
        if turn.id in self._turns:
            return
        names: list[bytes | str | UUID] = [
            turn.id,
            turn.chain_hash,
            turn.request_hash,
            *turn.echoes,
        ]
        keys: list[_Key] = [(turn.tenant_id, name) for name in names]
        self._turns[turn.id] = (_candidate(turn, session), keys)
        for key in keys:
            self._by_key.setdefault(key, {})[turn.id] = None
        if turn.parent_id is not None and turn.retry_of is None:
            self._continued[turn.parent_id] = None
        if session.external_id is not None:
            self._names[turn.tenant_id, session.external_id] = session.id
        self._forget()

    def named(self, tenant_id: UUID, name: str) -> UUID | None:
        """The session of a name."""
        return self._names.get((tenant_id, name))

    def find(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """The turns that Postgres would find, as far as they are known here."""
        found: dict[UUID, Candidate] = {}
        for echo in wanted.echoes:
            for turn in self._of(tenant_id, echo):
                found.setdefault(turn.turn_id, replace(turn, echo=echo))
        others: list[bytes | UUID] = [*wanted.chains]
        if wanted.previous is not None:
            others.append(wanted.previous)
        for key in others:
            for turn in self._of(tenant_id, key):
                found.setdefault(turn.turn_id, turn)
        for turn in self._of(tenant_id, wanted.request) if wanted.request else ():
            if turn.created_at >= wanted.since:
                found.setdefault(turn.turn_id, turn)
        return list(found.values())

    def merged(
        self, tenant_id: UUID, wanted: Wanted, stored: Iterable[Candidate]
    ) -> list[Candidate]:
        """What Postgres found together with what only this process knows yet."""
        found: dict[tuple[UUID, str | None], Candidate] = {}
        for turn in stored:
            continued = turn.continued or turn.turn_id in self._continued
            found[turn.turn_id, turn.echo] = replace(turn, continued=continued)
        known = {turn_id for turn_id, _ in found}
        more = [turn for turn in self.find(tenant_id, wanted) if turn.turn_id not in known]
        return [*found.values(), *more]

    def _of(self, tenant_id: UUID, key: bytes | str | UUID) -> list[Candidate]:
        turns = self._by_key.get((tenant_id, key), {})
        return [
            replace(self._turns[turn_id][0], continued=turn_id in self._continued)
            for turn_id in islice(reversed(turns), _MOST_OF_A_KEY)
        ]

    def _forget(self) -> None:
        while len(self._turns) > self._limit:
            turn_id, (_, keys) = self._turns.popitem(last=False)
            for key in keys:
                if (turns := self._by_key.get(key)) is not None:
                    turns.pop(turn_id, None)
                    if not turns:
                        del self._by_key[key]
        for memory in (self._continued, self._names):
            while len(memory) > self._limit:
                memory.popitem(last=False)


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
    )
