"""asyncpg's connection, with a way past its own layers for what is asked over and over.

`fetch` looks its statement up, guards it, takes the time and offers loggers a look, on the way to
one call of the protocol: fifteen calls and resumed coroutines, most of what a statement costs here.
"""

from __future__ import annotations

from typing import Any

import asyncpg

#: Whether this is a release whose protocol is known to be called like this. Others are asked in
#: their own way.
_KNOWN = asyncpg.__version__.startswith("0.32.")


class DirectConnection(asyncpg.Connection):
    """`ask` is `fetch` of one of a few statements, each of which is kept prepared.

    Outside of transactions: a statement that a change of the schema has outdated is sent again.
    """

    __slots__ = ("_asked",)

    # Of asyncpg, which does not tell their types.
    _get_statement: Any
    _protocol: Any
    _query_loggers: Any

    def __init__(self, *made: Any, **options: Any) -> None:
        super().__init__(*made, **options)
        self._asked: dict[str, Any] = {}

    async def ask(
        self, sql: str, *values: object, timeout_s: float | None = None
    ) -> list[asyncpg.Record]:
        if sql in self._asked and not self._query_loggers and self._protocol is not None:
            statement = self._asked[sql]
            try:
                found: list[asyncpg.Record] = await self._protocol.bind_execute(
                    statement, values, "", 0, False, timeout_s
                )
            except asyncpg.InvalidCachedStatementError:
                del self._asked[sql]
                statement.detach()
            else:
                return found
        rows = await self.fetch(sql, *values, timeout=timeout_s)
        if _KNOWN and sql not in self._asked:
            # asyncpg has it still, and would let go of it in time if it were not held here.
            statement = await self._get_statement(sql, timeout_s)
            if statement.name:
                statement.attach()
                self._asked[sql] = statement
        return rows
