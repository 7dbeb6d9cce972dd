"""The stack's own keys: one a role, their secrets in files that only their owner reads."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gateway.errors import AuthenticationError, StackError
from gateway.records import Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore

_FILES = {Role.AGENT: "key", Role.ADMIN: "admin-key"}


def read_key(home: Path, role: Role = Role.AGENT) -> str:
    """The secret of a stack's own key. Raises StackError where there is none."""
    try:
        return (home / _FILES[role]).read_text().strip()
    except OSError:
        raise StackError(f"no key in {home}: start the stack with `nextstate up`") from None


async def ensure_keys(home: Path, database: Database, *, base_model: str) -> None:
    """A tenant, a lineage over `base_model` and the keys; secrets that still work are kept.

    Raises StoreError where the lineage has another base model.
    """
    keys = KeyStore(database)
    tenant = await keys.ensure_tenant("default")
    lineage = await keys.ensure_lineage("default", base_model)
    for role, name in _FILES.items():
        path = home / name
        if path.is_file():
            with contextlib.suppress(AuthenticationError):
                await keys.principal(path.read_text().strip())
                continue
        _, secret = await keys.create(tenant, f"local-{role.value}", role, lineage)
        try:
            path.touch(mode=0o600)
            path.write_text(secret + "\n")
        except OSError as error:
            raise StackError(f"cannot write {path}: {error.strerror}") from error
