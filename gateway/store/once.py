"""Changes that their maker marked, so that sending one again makes it once.

The mark is kept in the change's audit entry, in its transaction. Ids of entries begin with their
time: what was marked of late is a short range of the primary key.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self
from uuid import UUID

import asyncpg

from gateway.errors import Conflict
from gateway.store.periods import first_id

#: For how long a mark stands; who asks again later makes the change again.
KEPT_S = 86_400.0
#: The first half of the locks' numbers.
_CLASS = int.from_bytes(b"once", "big")

_HOLD = "SELECT pg_advisory_xact_lock($1::int4, $2::int4)"
_EARLIER = """
SELECT subject FROM audit_entries WHERE id >= $1 AND subject ->> 'once' = $2 ORDER BY id LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Once:
    """What a client calls a change (`name`), and what it asks for (`request`), as SHA-256 in hex.

    Names are those of one tenant's admins.
    """

    name: str
    request: str

    @classmethod
    def of(cls, tenant_id: UUID, key: str, request: bytes) -> Self:
        return cls(
            sha256(tenant_id.bytes + key.encode("utf-8", "replace")).hexdigest(),
            sha256(request).hexdigest(),
        )

    def noted(self) -> dict[str, Any]:
        """What the audit entry says of it."""
        return {"once": self.name, "request": self.request}


async def made_before(
    connection: asyncpg.Connection, once: Once | None
) -> Mapping[str, Any] | None:
    """The subject of the audit entry of a change that was made under this name, if one was.

    Until the transaction ends, nobody else makes one under it. Raises Conflict where it names a
    change that asked for something else.
    """
    if once is None:
        return None
    await connection.execute(_HOLD, _CLASS, int(once.name[:8], 16) >> 1)
    subject: Mapping[str, Any] | None = await connection.fetchval(
        _EARLIER, first_id(time.time() - KEPT_S), once.name
    )
    if subject is not None and subject["request"] != once.request:
        raise Conflict(
            "This Idempotency-Key was used for another request.", code="idempotency_key_used"
        )
    return subject
