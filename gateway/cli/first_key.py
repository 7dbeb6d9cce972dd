"""The first admin key, where a deployment brings it: `NEXTSTATE_ADMIN_KEY` or `…_FILE`."""

from __future__ import annotations

import os
from typing import Literal
from uuid import UUID

from gateway.config import Settings
from gateway.errors import AuthenticationError, ConfigError, StoreError
from gateway.records import Role
from gateway.secret_files import content
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.lineages import LineageStore

VARIABLE = "NEXTSTATE_ADMIN_KEY"
DEFAULT = "default"


def wanted() -> str | None:
    """The secret of the environment, if there is one. Raises ConfigError."""
    plain, path = os.environ.get(VARIABLE), os.environ.get(f"{VARIABLE}_FILE")
    if plain and path:
        raise ConfigError(f"{VARIABLE} and {VARIABLE}_FILE are both set: keep one")
    return content(f"{VARIABLE}_FILE", path) if path else plain or None


async def ensure(
    settings: Settings, database: Database, secret: str
) -> Literal["created", "present"]:
    """Let a secret be an admin key of the tenant `default`; only its SHA-256 is stored.

    Raises ConfigError for one that is too short, StoreError for one that was revoked or is the
    key of another role.
    """
    keys = KeyStore(database)
    try:
        principal = await keys.principal(secret)
    except AuthenticationError:
        lineage = await default_lineage(settings, database)
        tenant = await keys.ensure_tenant(DEFAULT)
        try:
            await keys.create(tenant, "first-admin", Role.ADMIN, lineage, secret=secret)
        except StoreError as error:
            raise StoreError(f"{VARIABLE} is a key that was revoked: choose another") from error
        return "created"
    if principal.role is not Role.ADMIN:
        raise StoreError(f"{VARIABLE} is the key {principal.name!r} of role {principal.role}")
    return "present"


async def default_lineage(settings: Settings, database: Database) -> UUID:
    """The lineage `default`, made over the configured model where there is none yet."""
    found = await LineageStore(database).named(DEFAULT)
    if found is not None:
        return found.id
    path = settings.model.path
    return await KeyStore(database).ensure_lineage(
        DEFAULT, path.name if path else settings.model.name
    )
