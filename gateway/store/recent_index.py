"""Turns by all that they are found by, as Postgres would find them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from gateway.records import Candidate
from gateway.store.wanted import Wanted

#: The newest of those that have one key; more would tell nothing.
_MOST_OF_A_KEY = 64

_Key = bytes | str | UUID


class Kept(msgspec.Struct, array_like=True, eq=False, gc=False):
    """What is kept of a turn: how it is found, and what it says of others.

    `name` is the client's own of its session; `continues` says that its parent went on with it.
    """

    tenant_id: UUID
    turn: Candidate
    echoes: tuple[str, ...]
    name: str | None
    continues: bool

    @property
    def keys(self) -> tuple[_Key, ...]:
        """By which it is found."""
        turn = self.turn
        return (turn.turn_id, turn.chain_hash, turn.request_hash, *self.echoes)


class RecentIndex:
    """At most `limit` turns and as many session names, the oldest forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[UUID, Kept] = OrderedDict()
        # Of every tenant, the oldest first: hashing a pair with a UUID in it costs more than to
        # compare the tenant of what is found, which is hardly ever more than one turn.
        self._by_key: dict[_Key, list[Kept]] = {}
        # By the number of an id, as all that is asked about many turns: a UUID hashes in Python.
        self._continued: OrderedDict[int, None] = OrderedDict()
        self._names: OrderedDict[tuple[UUID, str], UUID] = OrderedDict()

    def add(self, kept: Kept) -> None:
        """Keep a turn that was stored, and that it continues its parent."""
        turn, keys, by_key = kept.turn, kept.keys, self._by_key
        if turn.turn_id in self._turns:
            return
        self._turns[turn.turn_id] = kept
        for key in keys:
            if key in by_key:
                by_key[key].append(kept)
            else:
                by_key[key] = [kept]
        if kept.continues and turn.parent_id is not None:
            self._continued[turn.parent_id.int] = None
            if (parent := self._turns.get(turn.parent_id)) is not None:
                parent.turn = self._known(parent.turn)
        if kept.name is not None:
            self._names[kept.tenant_id, kept.name] = turn.session_id
        # Of the others there are never more.
        if len(self._turns) > self._limit:
            self._forget()

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
