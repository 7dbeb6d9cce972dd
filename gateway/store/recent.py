"""The turns that this process stored last, as candidates: found while Postgres is away.

Bounded; what it knows is merged into what Postgres says, since a spooled turn is not there yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from gateway.records import Candidate, SessionRecord, TurnRecord

#: The newest of those that have one key; more would tell nothing.
_MOST_OF_A_KEY = 64


class Wanted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """By what stored turns are looked up, all of it inside one tenant.

    `chains` are hashes of prefixes, `echoes` keys of `resolve.echoes`; `request` is the hash of a
    body that was answered at `since` or later, `previous` a turn by its id.
    """

    chains: Sequence[bytes] = ()
    echoes: Sequence[str] = ()
    request: bytes | None = None
    since: float = 0.0
    previous: UUID | None = None


_Key = bytes | str | UUID


class _Kept(msgspec.Struct, eq=False, gc=False):
    """One turn: how it is found, and by which keys it is held."""

    tenant_id: UUID
    turn: Candidate
    keys: Sequence[_Key]


class RecentTurns:
    """At most `limit` turns and as many session names, the oldest forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[UUID, _Kept] = OrderedDict()
        # Of every tenant, the oldest first: hashing a pair with a UUID in it costs more than to
        # compare the tenant of what is found, which is hardly ever more than one turn.
        self._by_key: dict[_Key, list[_Kept]] = {}
        # By the number of an id, as all that is asked about many turns: a UUID hashes in Python.
        self._continued: OrderedDict[int, None] = OrderedDict()
        self._names: OrderedDict[tuple[UUID, str], UUID] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: TurnRecord, session: SessionRecord) -> None:
        """Keep a turn that was stored, and that it continues its parent."""
        if turn.id in self._turns:
            return
        keys: tuple[_Key, ...] = (turn.id, turn.chain_hash, turn.request_hash, *turn.echoes)
        kept = _Kept(turn.tenant_id, _candidate(turn, session), keys)
        self._turns[turn.id] = kept
        by_key = self._by_key
        for key in keys:
            if key in by_key:
                by_key[key].append(kept)
            else:
                by_key[key] = [kept]
        if turn.parent_id is not None and turn.retry_of is None:
            self._continued[turn.parent_id.int] = None
            if (parent := self._turns.get(turn.parent_id)) is not None:
                parent.turn = self._known(parent.turn)
        if session.external_id is not None:
            self._names[turn.tenant_id, session.external_id] = session.id
        # Of the others there are never more.
        if len(self._turns) > self._limit:
            self._forget()

    def clear(self) -> None:
        """Forget all of it."""
        for memory in (self._turns, self._by_key, self._continued, self._names):
            memory.clear()

    def named(self, tenant_id: UUID, name: str) -> UUID | None:
        """The session of a name."""
        return self._names.get((tenant_id, name))

    def find(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """The turns that Postgres would find, as far as they are known here."""
        # Of a conversation that is new here nothing is, and there is nothing to put together.
        for key in (*wanted.echoes, *wanted.chains, wanted.previous, wanted.request):
            if key in self._by_key:
                return self._found(tenant_id, wanted)
        return []

    def _found(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        found: dict[int, Candidate] = {}
        for echo in wanted.echoes:
            for turn in self._of(tenant_id, echo):
                if turn.turn_id.int not in found:
                    found[turn.turn_id.int] = replace(turn, echo=echo)
        others: list[_Key] = [*wanted.chains]
        if wanted.previous is not None:
            others.append(wanted.previous)
        for key in others:
            for turn in self._of(tenant_id, key):
                found.setdefault(turn.turn_id.int, turn)
        for turn in self._of(tenant_id, wanted.request) if wanted.request else ():
            if turn.created_at >= wanted.since:
                found.setdefault(turn.turn_id.int, turn)
        return list(found.values())

    def merged(
        self, tenant_id: UUID, wanted: Wanted, stored: Sequence[Candidate]
    ) -> list[Candidate]:
        """What Postgres found together with what only this process knows yet."""
        more = self.find(tenant_id, wanted)
        if not stored:
            return more
        found: dict[tuple[int, str | None], Candidate] = {}
        known: set[int] = set()
        for turn in stored:
            found[turn.turn_id.int, turn.echo] = self._known(turn)
            known.add(turn.turn_id.int)
        return [*found.values()] + [turn for turn in more if turn.turn_id.int not in known]

    def _of(self, tenant_id: UUID, key: _Key) -> Sequence[Candidate]:
        """The newest of a tenant that have a key."""
        if key not in self._by_key:
            return ()
        own: list[Candidate] = []
        for kept in reversed(self._by_key[key]):
            if kept.tenant_id.int == tenant_id.int:
                own.append(self._known(kept.turn))
                if len(own) == _MOST_OF_A_KEY:
                    break
        return own

    def _known(self, turn: Candidate) -> Candidate:
        """With what is known here of its being continued."""
        if turn.continued or turn.turn_id.int not in self._continued:
            return turn
        return replace(turn, continued=True)

    def _forget(self) -> None:
        while len(self._turns) > self._limit:
            _, oldest = self._turns.popitem(last=False)
            for key in oldest.keys:
                same = self._by_key[key]
                same.remove(oldest)
                if not same:
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
        parent_session_id=session.parent_session_id,
        grammar=turn.sampling.grammar is not None,
        max_tokens=turn.sampling.max_tokens,
    )
