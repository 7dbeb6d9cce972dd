"""The two arms of a run: keys in the lineage that is trained and in one that is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from openai import AsyncOpenAI

from gateway.demo.crowd import Clients
from gateway.errors import StackError
from gateway.records import Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore

TRAINED, CONTROL = "default", "control"

_FRESH = """
SELECT l.live_version = 0 AND NOT EXISTS (SELECT FROM turns WHERE lineage_id = l.id)
FROM lineages l WHERE l.id = $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Everybody's clients, one for the facts, and the lineages that their turns are stored in."""

    people: dict[str, Clients]
    facts: AsyncOpenAI
    trained: UUID
    control: UUID


@asynccontextmanager
async def opened(
    database: Database,
    *,
    url: str,
    base_model: str,
    kind: Literal["lora", "full"] = "lora",
    names: Iterable[str],
) -> AsyncIterator[Arms]:
    """A key for each person in each arm, so that scores can be told apart by person.

    Raises StackError where either lineage has been used before: version 0 would be missing.
    """
    keys = KeyStore(database)
    tenant = await keys.ensure_tenant("default")
    trained = await keys.ensure_lineage(TRAINED, base_model, kind)
    control = await keys.ensure_lineage(CONTROL, base_model, kind, trains=False)
    for lineage in (trained, control):
        if not await database.fetchval(_FRESH, lineage):
            raise StackError(
                "the demo starts from version 0 and needs a database that no agent has used"
            )
    async with AsyncExitStack() as clients:

        async def client(name: str, lineage: UUID) -> AsyncOpenAI:
            _, secret = await keys.create(tenant, name, Role.AGENT, lineage)
            return await clients.enter_async_context(
                AsyncOpenAI(base_url=f"{url}/v1", api_key=secret)
            )

        people = {
            name: Clients(trained=await client(name, trained), control=await client(name, control))
            for name in names
        }
        yield Arms(
            people=people,
            facts=await client("facts", trained),
            trained=trained,
            control=control,
        )
