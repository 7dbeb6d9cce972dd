"""Feedback taken in: what it is about is found, and it is stored unless it was before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from gateway.api.feedback_body import (
    FeedbackBody,
    FeedbackStored,
    SessionFeedbackBody,
    SessionFeedbackStored,
    TurnShare,
    turn_named,
)
from gateway.errors import Conflict, NotFound
from gateway.records import FeedbackRecord, new_id
from gateway.redaction import Redactor
from gateway.store.feedback import FeedbackStore, Given
from gateway.store.writer import TurnWriter

#: Scores are stored as float32.
_FLOAT32 = 1e-6
#: A smaller share of a session's score is none.
_LEAST = 1e-9


class FeedbackDesk:
    """Everything is inside the tenant. A key makes the same feedback count once.

    What a `redactor` finds in the words is not stored.
    """

    def __init__(
        self, store: FeedbackStore, writer: TurnWriter, redactor: Redactor | None = None
    ) -> None:
        self._store = store
        self._writer = writer
        self._redactor = redactor

    async def of_turn(
        self, tenant_id: UUID, name: str, body: FeedbackBody, key: str | None
    ) -> FeedbackStored:
        """Raises NotFound, and Conflict where the key was used for other feedback."""
        turn_id = await self._turn(tenant_id, name, body.choice)
        if given := await self._given(tenant_id, key, body.value, (turn_id,)):
            return FeedbackStored(id=given.id, turn_id=turn_id)
        record = FeedbackRecord(
            id=new_id(),
            tenant_id=tenant_id,
            turn_id=turn_id,
            score=body.value,
            text=body.text,
            source=body.source,
            idempotency_key=key,
        )
        await self._keep([record])
        return FeedbackStored(id=record.id, turn_id=turn_id)

    async def session(self, tenant_id: UUID, name: str) -> UUID:
        """The session of an id, or of the name that its client gave it. Raises NotFound."""
        found = await self._store.session(tenant_id, name)
        if found is None:
            raise NotFound("There is no such session.")
        return found

    async def of_session(
        self, tenant_id: UUID, name: str, body: SessionFeedbackBody, key: str | None
    ) -> SessionFeedbackStored:
        """The score times gamma^k for the main-line turn k places before the last.

        Raises NotFound, and Conflict where the key was used for other feedback.
        """
        session_id = await self.session(tenant_id, name)
        members = await self._store.main_line(tenant_id, session_id)
        if not members:
            raise NotFound("That session has no main-line turns.")
        turn_ids = [member.turn_id for member in members]
        if key and await self._given(tenant_id, key, body.value, turn_ids):
            keys = [key, *(f"{key}#{turn_id}" for turn_id in turn_ids)]
            given = await self._store.given(tenant_id, keys)
            return _answer(session_id, [_share(one) for one in given])
        records = [
            FeedbackRecord(
                id=new_id(),
                tenant_id=tenant_id,
                turn_id=member.turn_id,
                score=body.value * discount,
                text=body.text,
                source=body.source,
                # The last turn's share, which is the whole, is found by the client's own key.
                idempotency_key=f"{key}#{member.turn_id}" if key and place else key,
                session_id=session_id,
                discount=discount,
            )
            for place, member in enumerate(members)
            # Where nothing is left of it nothing is said of the turn, which a 0 would be.
            if (discount := body.gamma**member.distance) >= _LEAST
        ]
        await self._keep(records)
        return _answer(session_id, [_share(record) for record in records])

    async def _keep(self, records: Sequence[FeedbackRecord]) -> None:
        if self._redactor is not None:
            records = await self._redactor.of_feedback(records)
        await self._writer.commit(*records)

    async def _turn(self, tenant_id: UUID, name: str, choice: int | None) -> UUID:
        named = turn_named(name)
        choices = await self._store.choices(tenant_id, named) if named else []
        if named is None or not choices:
            raise NotFound("There is no such turn.")
        if choice is None:
            return named
        if choice >= len(choices):
            raise NotFound(f"That completion has {len(choices)} choices.")
        return choices[choice]

    async def _given(
        self, tenant_id: UUID, key: str | None, score: float, turn_ids: Collection[UUID]
    ) -> Given | None:
        """The same feedback, given before under the same key."""
        found = await self._store.given(tenant_id, [key]) if key else []
        for given in found:
            if given.turn_id in turn_ids and abs(given.score - score) < _FLOAT32:
                return given
            raise Conflict("This Idempotency-Key was used for other feedback.")
        return None


def _share(said: FeedbackRecord | Given) -> TurnShare:
    discount = 1.0 if said.discount is None else said.discount
    return TurnShare(id=said.id, turn_id=said.turn_id, score=said.score, discount=discount)


def _answer(session_id: UUID, shares: list[TurnShare]) -> SessionFeedbackStored:
    """The last turn first; ids of turns grow with time."""
    ordered = sorted(shares, key=lambda share: share.turn_id, reverse=True)
    return SessionFeedbackStored(session_id=session_id, turns=ordered)
