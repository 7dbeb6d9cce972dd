"""What an unreachable, stopping, restarting or hanging Postgres looks like from here."""

from __future__ import annotations

from types import TracebackType

import asyncpg

from gateway.errors import StoreUnavailable

AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    # What asyncpg says of a connection that the server has ended and that is not closed yet.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


def unreachable(error: BaseException) -> StoreUnavailable:
    """What one of `AWAY` means."""
    what = str(error) or type(error).__name__
    return StoreUnavailable(f"Postgres cannot be reached: {what}")


class unavailable:  # noqa: N801 - it reads as what it does, and a generator costs more
    """Turn what an absent server looks like into StoreUnavailable."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, AWAY):
            raise unreachable(error) from error
