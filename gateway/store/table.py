"""Records as rows: one JSON document holds many of them, and a statement takes it whole.

A record is encoded once. JSON costs this process a fraction of what binding an array a column
does, and a batch of any size is one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from gateway.store.packing import Unstorable, json_bytes, scrubbed

R = TypeVar("R", bound=msgspec.Struct)

#: Types that JSON has no form for: what they travel as, and how SQL turns it into them. msgspec
#: writes bytes in base64.
_TRAVELS = {
    "bytea": ("text", "decode({}, 'base64')"),
    "timestamptz": ("float8", "to_timestamp({})"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type in Postgres and the revision that added it."""

    name: str
    kind: str
    since: str = ""


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """How records of one kind become rows of one table.

    `row` gives the values by column, and those of `beside`, which travel along and are not
    stored. An older schema takes of a row what it has columns for.
    """

    name: str
    columns: tuple[Column, ...]
    row: Callable[[R], dict[str, object]] = field(repr=False)
    beside: tuple[Column, ...] = ()

    def at(self, revision: str) -> Table[R]:
        """The table as a schema has it."""
        columns = tuple(column for column in self.columns if column.since <= revision)
        return Table(self.name, columns, self.row, self.beside)

    @property
    def names(self) -> str:
        return ", ".join(column.name for column in self.columns)

    def sent(self, parameter: int) -> str:
        """The rows of a parameter, as a table to select `r` from."""
        kinds = ", ".join(
            f"{column.name} {_TRAVELS.get(column.kind, (column.kind,))[0]}"
            for column in (*self.columns, *self.beside)
        )
        return f"json_to_recordset(${parameter}::json) AS r({kinds})"

    def insert(self, source: str, **instead: str) -> str:
        """INSERT of the rows of `r` in `source`; SQL for a column may take its value's place."""
        values = ", ".join(
            instead.get(
                column.name,
                _TRAVELS.get(column.kind, ("", "{}"))[1].format(f"r.{column.name}"),
            )
            for column in self.columns
        )
        return f"INSERT INTO {self.name} ({self.names}) SELECT {values} FROM {source}"  # noqa: S608 - made of constants

    def prepared(self, record: R) -> tuple[R, bytes]:
        """A record and its row in JSON, its texts made storable where they are not.

        Raises StoreError for ids that do not fit.
        """
        try:
            return record, json_bytes(self.row(record))
        except Unstorable:
            record = scrubbed(record)
        return record, json_bytes(self.row(record), loose=True)


def document(rows: Iterable[bytes]) -> str:
    """Rows as the one parameter that a statement takes them by."""
    return f"[{b','.join(rows).decode()}]"
