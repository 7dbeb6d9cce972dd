"""One call of the writer: its records, and their rows as they will be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from gateway.errors import StoreError
from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord
from gateway.store.frames import Storable
from gateway.store.packing import finite
from gateway.store.rows import FEEDBACK, NEXT_STATES, SESSIONS, TURNS


class Call:
    """One `commit`: records that are stored together or not at all.

    Each is kept as it can be stored, beside its row; `size` is that of all rows. Raises StoreError
    for a record that has no form in Postgres.
    """

    __slots__ = (
        "done",
        "error",
        "feedback",
        "next_states",
        "sessions",
        "settled",
        "size",
        "turns",
    )

    def __init__(
        self, records: Iterable[Storable], done: asyncio.Future[bool] | None = None
    ) -> None:
        self.done = done
        self.settled = False
        self.error: StoreError | None = None
        self.size = 0
        self.sessions: list[tuple[SessionRecord, bytes]] = []
        self.turns: list[tuple[TurnRecord, bytes]] = []
        self.next_states: list[tuple[NextState, bytes]] = []
        self.feedback: list[tuple[FeedbackRecord, bytes]] = []
        pair: tuple[Storable, bytes]
        for record in records:
            match record:
                case SessionRecord():
                    self.sessions.append(pair := SESSIONS.prepared(record))
                case TurnRecord() if record.trainable and not finite(record.logprobs):
                    lesser = _given_up(record, "logprob_not_finite")
                    self.turns.append(pair := TURNS.prepared(lesser))
                case TurnRecord():
                    self.turns.append(pair := TURNS.prepared(record))
                case NextState():
                    self.next_states.append(pair := NEXT_STATES.prepared(record))
                case FeedbackRecord():
                    self.feedback.append(pair := FEEDBACK.prepared(record))
            self.size += len(pair[1])

    @property
    def records(self) -> tuple[Storable, ...]:
        prepared: list[tuple[Storable, bytes]] = [
            *self.sessions,
            *self.turns,
            *self.next_states,
            *self.feedback,
        ]
        return tuple(record for record, _ in prepared)

    def untrainable(self) -> Call | None:
        """The same call with its turns given up for training, None where none is trainable."""
        if not any(turn.trainable for turn, _ in self.turns):
            return None
        return Call(
            tuple(
                _given_up(record, "length_mismatch")
                if isinstance(record, TurnRecord) and record.trainable
                else record
                for record in self.records
            )
        )

    def settle(self, error: StoreError | None = None, *, spooled: bool = False) -> None:
        """Stored for good, or refused for good; the caller is told, if one still waits.

        Where it is stored, whether that is Postgres.
        """
        self.settled = True
        self.error = error
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(not spooled)
        else:
            self.done.set_exception(error)


def _given_up(turn: TurnRecord, reason: str) -> TurnRecord:
    """The same turn, which is never trained on."""
    return replace(turn, trainable=False, untrainable_reason=reason)
