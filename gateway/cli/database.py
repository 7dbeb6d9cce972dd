"""The database in reach, for one piece of work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from gateway.cli.terminal import local_settings

if TYPE_CHECKING:
    from gateway.store.database import Database

T = TypeVar("T")


def on_database(work: Callable[[Database], Awaitable[T]], *, application: str) -> T:
    """Do something on the database in reach."""
    from gateway.local.access import database_url
    from gateway.store.database import Database

    settings = local_settings()

    async def run() -> T:
        url = database_url(settings)
        database = await Database.open(settings.database, url, application=application)
        try:
            await database.check_revision()
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())
