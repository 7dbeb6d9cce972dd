"""The stored turns that requests may continue: looked for by their keys, for many requests at once.

What is wanted while look-ups are under way waits for one of them and goes with all that waits, as
commits do: an idle gateway asks at once, a busy one a fraction of once a request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from gateway.errors import StoreUnavailable
from gateway.records import Candidate, FinishReason, TurnKind
from gateway.store.database import Database, seconds
from gateway.store.table import document
from gateway.store.wanted import Wanted

#: Equal conversations of one tenant beyond these are told apart by nothing anyway.
_MOST_CANDIDATES = 64
#: Of what many have said, some are enough to see that it tells nothing.
_MOST_OF_A_KEY = 8
_KINDS = {kind.value: kind for kind in TurnKind}
_REASONS = {reason.value: reason for reason in FinishReason}
#: Requests that one query looks for.
_MOST_ASKED = 64
#: Queries at a time: agents that were answered together ask together, and of two the second need
#: not wait for the first. More would leave nothing to go together.
_AT_ONCE = 2

_COLUMNS = """
id, session_id, lineage_id, parent_id, chain_hash, depth, message_count, kind, tools_hash,
finish_reason, created_at, request_hash, idempotency_key, delivered, sampling
"""

# A turn that is looked up by its id: the tenant is compared so that no index begins with it.
_BY_ID = f"""
SELECT {_COLUMNS} FROM turns WHERE id = {{}} AND tenant_id IS NOT DISTINCT FROM w.tenant_id
"""  # noqa: S608 - made of constants

_OF_ECHOES = f"""
SELECT t.*, e.id AS echo
FROM unnest(w.echoes) AS k(key) CROSS JOIN LATERAL (
    SELECT id, turn_id FROM echoes WHERE tenant_id = w.tenant_id AND id = k.key
    ORDER BY turn_id DESC LIMIT {_MOST_OF_A_KEY}
) e CROSS JOIN LATERAL ({_BY_ID.format("e.turn_id")} LIMIT 1) t
"""  # noqa: S608 - made of constants

# Each arm picks turns by an index of its own, bounded, before anything is joined to them: the
# planner is left no choice. Two indexes begin with the tenant, and where most tenants have few
# turns either would seem as good: the order by the hash, which must not look constant for it, is
# had from the right one alone. `number` counts what is wanted.
_CANDIDATES = """
SELECT w.number, t.id, t.session_id, t.lineage_id, t.parent_id, t.chain_hash, t.depth,
    t.message_count, t.kind, t.tools_hash, t.finish_reason, t.request_hash, t.idempotency_key,
    t.delivered, t.echo, t.sampling ? 'grammar' AS grammar,
    (t.sampling ->> 'max_tokens')::int8 AS max_tokens,
    s.end_user AS "user", s.parent_session_id, {created_at} AS created_at,
    coalesce((
        SELECT true FROM turns c WHERE c.parent_id = t.id AND c.retry_of IS NULL LIMIT 1
    ), false) AS continued
FROM ROWS FROM (json_to_recordset($1::json) AS (
    tenant_id uuid, chains bytea[], echoes text[], request bytea, since float8, previous uuid
)) WITH ORDINALITY AS w(tenant_id, chains, echoes, request, since, previous, number)
CROSS JOIN LATERAL (
    (SELECT c.*, NULL::text AS echo FROM unnest(w.chains) AS k(key) CROSS JOIN LATERAL (
        SELECT {columns} FROM turns
        WHERE tenant_id = w.tenant_id AND chain_hash >= k.key AND chain_hash <= k.key
        ORDER BY chain_hash DESC, id DESC LIMIT {most}
     ) c ORDER BY c.message_count DESC, c.id DESC LIMIT {most})
    UNION ALL ({of_echoes})
    UNION ALL
    (SELECT {columns}, NULL FROM turns
     WHERE tenant_id = w.tenant_id AND request_hash = w.request
        AND created_at >= to_timestamp(w.since)
     ORDER BY created_at DESC LIMIT {most})
    UNION ALL
    (SELECT p.*, NULL FROM ({previous}) p)
) AS t CROSS JOIN LATERAL (SELECT * FROM sessions WHERE id = t.session_id LIMIT 1) s
ORDER BY w.number, t.message_count DESC, t.id DESC
"""

#: The one query that finds parents and first attempts: of each of the `wanted` documents in `$1`,
#: a turn as often as it is found.
FIND_CANDIDATES = _CANDIDATES.format(
    columns=_COLUMNS,
    of_echoes=_OF_ECHOES,
    previous=_BY_ID.format("w.previous"),
    created_at=seconds("t.created_at"),
    most=_MOST_CANDIDATES,
)


#: The row of what is wanted, and who waits for it.
_Asked = tuple[bytes, asyncio.Future[list[Candidate]]]
_ROW = itemgetter(0)


class _Row(msgspec.Struct, omit_defaults=True, gc=False):
    """What is wanted, as the query reads it: hashes in the input form of bytea."""

    tenant_id: UUID
    chains: list[str] | None = None
    echoes: Sequence[str] | None = None
    request: str | None = None
    since: float | None = None
    previous: UUID | None = None


_encode = msgspec.json.Encoder().encode


def wanted_row(tenant_id: UUID, wanted: Wanted) -> bytes:
    """One element of the document that `FIND_CANDIDATES` takes."""
    return _encode(
        _Row(
            tenant_id,
            ["\\x" + key.hex() for key in wanted.chains] if wanted.chains else None,
            wanted.echoes or None,
            None if wanted.request is None else "\\x" + wanted.request.hex(),
            wanted.since,
            wanted.previous,
        )
    )


class Candidates:
    """Looks for turns. A few queries are under way at a time, and what comes meanwhile waits."""

    def __init__(self, database: Database, patience_s: float) -> None:
        self._database = database
        self._patience_s = patience_s
        self._waiting: list[_Asked] = []
        #: Those who look, which stay once there was something for them to do, and wait here.
        self._resting: list[asyncio.Future[None]] = []
        self._looking = 0
        #: Whether one that was called has not begun yet: it will take all that waits.
        self._called = False

    def find(self, tenant_id: UUID, wanted: Wanted) -> asyncio.Future[list[Candidate]]:
        """Stored turns by any of what is wanted, the deepest first, the newest first.

        Raises StoreUnavailable to who awaits it.
        """
        found: asyncio.Future[list[Candidate]] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_row(tenant_id, wanted), found))
        if not self._called:
            self._call()
        return found

    def _call(self) -> None:
        """Have one more look, if any more may."""
        while self._resting:
            rest = self._resting.pop()
            if not rest.done():
                rest.set_result(None)
                self._called = True
                return
        if self._looking < _AT_ONCE:
            self._looking += 1
            self._database.spawn(self._look_on())
            self._called = True

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        asked: list[_Asked] = []
        try:
            while True:
                self._called = False
                asked, self._waiting = self._waiting[:_MOST_ASKED], self._waiting[_MOST_ASKED:]
                if not asked:
                    rest = loop.create_future()
                    self._resting.append(rest)
                    await rest
                    continue
                if self._waiting:
                    self._call()
                try:
                    rows = await self._database.look_up(
                        FIND_CANDIDATES,
                        document(map(_ROW, asked)),
                        timeout_s=self._patience_s,
                    )
                    _tell(asked, rows)
                except Exception as error:  # noqa: BLE001 - it is theirs who asked
                    if isinstance(error, StoreUnavailable) and _slow(error):
                        # Those that wait have waited as long.
                        asked, self._waiting = asked + self._waiting, []
                    _refuse(asked, error)
        finally:
            self._looking -= 1
            _refuse(asked + self._waiting, StoreUnavailable("the database is closed"))


def _tell(asked: Sequence[_Asked], rows: Sequence[asyncpg.Record]) -> None:
    """Give each of those who asked its own rows."""
    found: defaultdict[int, list[Candidate]] = defaultdict(list)
    for row in rows:
        found[row["number"]].append(_candidate(row))
    for number, (_, future) in enumerate(asked, 1):
        if not future.done():
            future.set_result(found[number])


def _refuse(asked: Sequence[_Asked], error: Exception) -> None:
    for _, future in asked:
        if not future.done():
            future.set_exception(error)


def _slow(error: StoreUnavailable) -> bool:
    return isinstance(error.__cause__, TimeoutError)


def _candidate(row: asyncpg.Record) -> Candidate:
    values: dict[str, Any] = dict(row)
    del values["number"]
    values["turn_id"] = values.pop("id")
    values["kind"], values["finish_reason"] = _KINDS[row["kind"]], _REASONS[row["finish_reason"]]
    return Candidate(**values)
