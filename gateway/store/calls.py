"""One call of the writer: its records, and their rows as they will be sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.errors import StoreError
from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord
from gateway.store.frames import Storable
from gateway.store.packing import finite
from gateway.store.rows import FEEDBACK, NEXT_STATES, SESSIONS, TURNS


@dataclass(slots=True)
class Call:
    """One `commit`: records that are stored together or not at all.

    Each is kept as it can be stored, beside its row. Raises StoreError for a record that has no
    form in Postgres.
    """

    records: tuple[Storable, ...]
    done: asyncio.Future[None] | None = None
    settled: bool = False
    error: StoreError | None = None
    size: int = 0
    sessions: list[tuple[SessionRecord, bytes]] = field(default_factory=list)
    turns: list[tuple[TurnRecord, bytes]] = field(default_factory=list)
    next_states: list[tuple[NextState, bytes]] = field(default_factory=list)
    feedback: list[tuple[FeedbackRecord, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for record in self.records:
            match record:
                case SessionRecord():
                    self.sessions.append(SESSIONS.prepared(record))
                case TurnRecord():
                    self.turns.append(TURNS.prepared(_honest(record)))
                case NextState():
                    self.next_states.append(NEXT_STATES.prepared(record))
                case FeedbackRecord():
                    self.feedback.append(FEEDBACK.prepared(record))
        prepared: list[tuple[Storable, bytes]] = [
            *self.sessions,
            *self.turns,
            *self.next_states,
            *self.feedback,
        ]
        self.records = tuple(record for record, _ in prepared)
        self.size = sum(len(row) for _, row in prepared)

    def untrainable(self) -> Call | None:
        """The same call with its turns given up for training, None where none is trainable."""
        if not any(turn.trainable for turn, _ in self.turns):
            return None
        return Call(
            tuple(
                replace(record, trainable=False, untrainable_reason="length_mismatch")
                if isinstance(record, TurnRecord) and record.trainable
                else record
                for record in self.records
            )
        )

    def settle(self, error: StoreError | None = None) -> None:
        """Stored for good, or refused for good; the caller is told, if one still waits."""
        self.settled = True
        self.error = error
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _honest(turn: TurnRecord) -> TurnRecord:
    """A turn whose log-probabilities are not all finite is never trained on."""
    if turn.trainable and not finite(turn.logprobs):
        return replace(turn, trainable=False, untrainable_reason="logprob_not_finite")
    return turn
