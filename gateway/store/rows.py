"""Records as rows, and the statements that insert many rows at once.

A statement takes one array a column and unnests them, so that its cost hardly grows with rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord
from gateway.store.packing import Unstorable, json_text, pack_ids, pack_logprobs, scrubbed

R = TypeVar("R")

Row = tuple[Any, ...]

#: How a column's values travel (the element type of the array) and are turned into it.
_TRAVELS = {"jsonb": ("text", "{}::jsonb"), "timestamptz": ("float8", "to_timestamp({})")}


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column: its type in Postgres and its value for a record."""

    name: str
    kind: str
    value: Callable[[R], object]


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """How records of one kind become rows of one table."""

    name: str
    columns: tuple[Column[R], ...]

    @property
    def names(self) -> str:
        return ", ".join(column.name for column in self.columns)

    @property
    def arrays(self) -> str:
        """`unnest(…) AS r(…)`, the rows sent, with parameters numbered from 1."""
        kinds = (_TRAVELS.get(column.kind, (column.kind, ""))[0] for column in self.columns)
        listed = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))
        return f"unnest({listed}) AS r({self.names})"

    @property
    def values(self) -> str:
        """The columns of `arrays` in their own types."""
        return ", ".join(
            _TRAVELS.get(column.kind, ("", "{}"))[1].format(f"r.{column.name}")
            for column in self.columns
        )

    @property
    def insert(self) -> str:
        what = f"SELECT {self.values} FROM {self.arrays}"  # noqa: S608 - made of constants
        return f"INSERT INTO {self.name} ({self.names}) {what}"

    def position(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)

    def row(self, record: R) -> Row:
        """Raises StoreError for ids that do not fit, Unstorable for texts that do not."""
        return tuple(_value(column, record) for column in self.columns)

    def prepared(self, record: R) -> tuple[R, Row]:
        """A record and its row, its texts made storable where they are not."""
        try:
            return record, self.row(record)
        except Unstorable:
            record = scrubbed(record)
        return record, tuple(_value(column, record, loose=True) for column in self.columns)


def transposed(rows: Iterable[Row]) -> list[list[Any]]:
    """Rows as one list a column."""
    return [list(values) for values in zip(*rows, strict=True)]


def _value(column: Column[R], record: R, *, loose: bool = False) -> object:
    value = column.value(record)
    if column.kind == "jsonb":
        return json_text(value, loose=loose)
    if column.kind == "text" and isinstance(value, str):
        if not loose and ("\0" in value or not _encodes(value)):
            raise Unstorable(column.name)
        return str(value)
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sampling(turn: TurnRecord) -> dict[str, Any]:
    """What was set; the rest was left to the engine."""
    return {name: value for name, value in asdict(turn.sampling).items() if value not in (None, ())}


def _versions(turn: TurnRecord, pick: Callable[[Sequence[int]], int]) -> int | None:
    return pick([span.version for span in turn.spans]) if turn.spans else None


SESSIONS: Table[SessionRecord] = Table(
    "sessions",
    (
        Column("id", "uuid", lambda r: r.id),
        Column("tenant_id", "uuid", lambda r: r.tenant_id),
        Column("key_id", "uuid", lambda r: r.key_id),
        Column("lineage_id", "uuid", lambda r: r.lineage_id),
        Column("external_id", "text", lambda r: r.external_id),
        Column("resolved_by", "text", lambda r: r.resolved_by),
        Column("ambiguous", "bool", lambda r: r.ambiguous),
        Column("client", "text", lambda r: r.client),
        Column("end_user", "text", lambda r: r.user),
        Column("model", "text", lambda r: r.model),
        Column("parent_session_id", "uuid", lambda r: r.parent_session_id),
        Column("first_seen", "timestamptz", lambda r: r.seen_at),
        Column("last_seen", "timestamptz", lambda r: r.seen_at),
    ),
)

TURNS: Table[TurnRecord] = Table(
    "turns",
    (
        Column("id", "uuid", lambda r: r.id),
        Column("tenant_id", "uuid", lambda r: r.tenant_id),
        Column("session_id", "uuid", lambda r: r.session_id),
        Column("lineage_id", "uuid", lambda r: r.lineage_id),
        Column("parent_id", "uuid", lambda r: r.parent_id),
        Column("depth", "int4", lambda r: r.depth),
        Column("branch_reason", "text", lambda r: r.branch_reason),
        Column("retry_of", "uuid", lambda r: r.retry_of),
        Column("kind", "text", lambda r: r.kind.value),
        Column("kind_rule", "text", lambda r: r.kind_rule),
        Column("kind_confidence", "float4", lambda r: r.kind_confidence),
        Column("resolve_rule", "text", lambda r: r.resolve_rule),
        Column("dialect", "text", lambda r: r.dialect),
        Column("model", "text", lambda r: r.model),
        Column("engine", "text", lambda r: r.engine),
        Column("request_hash", "bytea", lambda r: r.request_hash),
        Column("chain_hash", "bytea", lambda r: r.chain_hash),
        Column("message_count", "int4", lambda r: r.message_count),
        Column("messages", "jsonb", lambda r: r.messages),
        Column("tools", "jsonb", lambda r: r.tools),
        Column("tools_hash", "bytea", lambda r: r.tools_hash),
        Column("reply", "jsonb", lambda r: r.reply),
        Column("prompt_len", "int4", lambda r: r.shared_len + len(r.prompt_ids)),
        Column("shared_len", "int4", lambda r: r.shared_len),
        Column("completion_len", "int4", lambda r: len(r.sampled_ids)),
        Column("prompt_ids", "bytea", lambda r: pack_ids(r.prompt_ids)),
        Column("sampled_ids", "bytea", lambda r: pack_ids(r.sampled_ids)),
        Column("logprobs", "bytea", lambda r: pack_logprobs(r.logprobs)),
        Column("spans", "jsonb", lambda r: [(s.version, s.start, s.end) for s in r.spans]),
        Column("version_min", "int8", lambda r: _versions(r, min)),
        Column("version_max", "int8", lambda r: _versions(r, max)),
        Column("sampling", "jsonb", _sampling),
        Column("finish_reason", "text", lambda r: r.finish_reason.value),
        Column("finish_detail", "text", lambda r: r.finish_detail),
        Column("trainable", "bool", lambda r: r.trainable),
        Column("untrainable_reason", "text", lambda r: r.untrainable_reason),
        Column("stream_mismatch", "bool", lambda r: r.stream_mismatch),
        Column("cached_tokens", "int4", lambda r: r.usage.cached_tokens),
        Column("queued_ms", "float4", lambda r: r.timings.queued_ms),
        Column("first_token_ms", "float4", lambda r: r.timings.first_token_ms),
        Column("total_ms", "float4", lambda r: r.timings.total_ms),
        Column("created_at", "timestamptz", lambda r: r.created_at),
        # Since 0002; they come last, so that an older schema is given the columns before them.
        Column("idempotency_key", "text", lambda r: r.idempotency_key),
        Column("delivered", "bool", lambda r: r.delivered),
        Column("response_store", "bool", lambda r: r.response_store),
    ),
)

#: `turns` of a database at revision 0001, which this build still runs on.
TURNS_0001: Table[TurnRecord] = Table("turns", TURNS.columns[: TURNS.position("idempotency_key")])

NEXT_STATES: Table[NextState] = Table(
    "next_states",
    (
        Column("turn_id", "uuid", lambda r: r.turn_id),
        Column("tenant_id", "uuid", lambda r: r.tenant_id),
        Column("following_id", "uuid", lambda r: r.following_id),
        Column("messages", "jsonb", lambda r: r.messages),
        Column("role", "text", lambda r: r.role),
        Column("arrived_at", "timestamptz", lambda r: r.arrived_at),
    ),
)

FEEDBACK: Table[FeedbackRecord] = Table(
    "feedback",
    (
        Column("id", "uuid", lambda r: r.id),
        Column("tenant_id", "uuid", lambda r: r.tenant_id),
        Column("turn_id", "uuid", lambda r: r.turn_id),
        Column("score", "float4", lambda r: r.score),
        Column("text", "text", lambda r: r.text),
        Column("source", "text", lambda r: r.source),
        Column("idempotency_key", "text", lambda r: r.idempotency_key),
    ),
)
