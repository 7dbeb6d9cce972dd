"""The two tenants of a seeded database, as sides of a game."""

from __future__ import annotations

from tests.admin import admin_of, done
from tests.fixtures_gateway import Gateway
from tests.fuzz.tenants import Side
from tests.seeded import THEIRS, Seeded

NAME = "chat-1"


async def sides(gateway: Gateway, world: Seeded) -> tuple[Side, Side]:
    """Tenant `one` and tenant `other`, each with an admin key, and what is theirs."""
    found = []
    for secret, sessions, turns, word in (
        # What its judge wrote stands in the other's turns too; its name for a session does not.
        (gateway.keys.admin, (world.long, world.short), (*world.turns, world.last), NAME),
        (await admin_of(gateway, "other"), (world.theirs,), (world.their_turn,), THEIRS),
    ):
        keys = (await done(gateway, "GET", "keys", key=secret))["items"]
        # The admin key itself comes first, and is not among those that are ended.
        keys.sort(key=lambda one: one["role"] != "admin")
        found.append(
            Side(
                secret=secret,
                ids={
                    "key": [one["id"] for one in keys],
                    "session": [str(one.id) for one in sessions],
                    "turn": [str(one.id) for one in turns],
                    "tenant": [keys[0]["tenant_id"]],
                },
                words=(word, secret),
            )
        )
    one, other = found
    return one, other
