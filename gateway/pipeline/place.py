"""Where a request belongs: its session, the turn it continues, and what kind of call it is."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec
from msgspec.structs import replace

from gateway.classify import Awareness, Kind, promoted_by
from gateway.config import Settings
from gateway.errors import StoreError
from gateway.pipeline.search import Found, Search
from gateway.records import (
    Candidate,
    Principal,
    Resolution,
    Role,
    SessionRecord,
    TurnKind,
    TurnRequest,
    new_id,
)
from gateway.resolve import (
    EchoKind,
    NamedSession,
    Voices,
    beside,
    given_up,
    is_beside,
    left_before,
    may_roll_back,
    rolled_back,
    told_session,
)
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger

log = get_logger(__name__)


class Place(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`chain` is the hash of the whole request by `resolve.chain`, `head` by `head_hash`.

    `voices` are those of its messages, looked through once for all choices.
    `rolled_back` is the turn whose reply the request discards. `off_line` are turns that were
    beside the line after all, `given_up` those of its parent's whose client did not wait.
    `retells`: what the parent turn was asked is now known to have followed the turn before it.
    """

    session: SessionRecord
    resolution: Resolution
    kind: Kind
    seed: bytes
    chain: bytes
    head: bytes
    voices: Voices
    request_hash: bytes
    retry_of: UUID | None
    rolled_back: UUID | None = None
    off_line: tuple[UUID, ...] = ()
    given_up: tuple[UUID, ...] = ()
    retells: bool = False


class _Branching(msgspec.Struct, frozen=True, kw_only=True):
    """What a request means for the turns beside it; `kind` is its own, in the light of them."""

    kind: Kind
    rolled_back: UUID | None = None
    off_line: tuple[UUID, ...] = ()
    given_up: tuple[UUID, ...] = ()
    retells: bool = False


class Placer:
    """Looks up what is stored and lets the pure rules decide."""

    def __init__(
        self, settings: Settings, turns: TurnStore, awareness: Awareness | None = None
    ) -> None:
        self._awareness = awareness or Awareness(settings.session_awareness)
        self._debug = settings.gateway.debug_decisions
        self._turns = turns

    async def place(self, principal: Principal, request: TurnRequest, now: float) -> Place:
        """Place a request inside the tenant of its key. Raises nothing for a Postgres outage."""
        search = Search(self._turns, principal, request, now)
        keys = search.keys
        name = request.session_name or told_session(request.messages)
        caller_name = request.parent_session_name
        sessions: Mapping[str, NamedSession] = {}
        if name is not None or caller_name is not None:
            names = [each for each in (name, caller_name) if each is not None]
            sessions = await search.sessions(names)
        named = None if name is None else sessions.get(name, NamedSession(id=None))
        found = await search.found(named)
        resolution, retry = found.resolution, found.retry
        kind = self._awareness.classifier.classify(request, resolution)
        branching = _Branching(kind=kind)
        if resolution.parent is not None:
            branching = await self._branching(principal, request, found, resolution.parent, kind)
        kind, back = branching.kind, branching.rolled_back
        caller = None if caller_name is None else sessions.get(caller_name)
        session = SessionRecord(
            id=resolution.session_id or new_id(),
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            lineage_id=principal.lineage_id,
            external_id=name,
            resolved_by=resolution.rule,
            model=request.model,
            client=request.client,
            user=request.user,
            ambiguous=resolution.ambiguous,
            parent_session_id=caller.id if caller else resolution.parent_session_id,
            seen_at=now,
        )
        if self._debug:
            _log_decision(session, resolution, kind, retry, back)
        return Place(
            session=session,
            resolution=resolution,
            kind=kind,
            seed=keys.start,
            chain=keys.chain[-1] if keys.chain else keys.start,
            head=keys.head,
            voices=keys.voices,
            request_hash=keys.request,
            retry_of=retry.turn_id if retry else None,
            rolled_back=back,
            off_line=branching.off_line,
            given_up=branching.given_up,
            retells=branching.retells,
        )

    async def _branching(
        self,
        principal: Principal,
        request: TurnRequest,
        found: Found,
        parent: Candidate,
        kind: Kind,
    ) -> _Branching:
        """What a request that goes on from a reply means for the turns beside it.

        Rollouts branch on purpose, and are not asked for it.
        """
        resolution = found.resolution
        branching = _Branching(kind=kind, retells=promoted_by(resolution, kind))
        if found.retry is not None or principal.role is Role.ROLLOUT:
            return branching
        if parent.continued and not resolution.ambiguous and kind.kind is TurnKind.MAIN:
            tenant = principal.tenant_id
            branching = await self._beside(tenant, request, resolution, parent, branching)
        return _put_again(found, branching) if resolution.beside else branching

    async def _beside(
        self,
        tenant: UUID,
        request: TurnRequest,
        resolution: Resolution,
        parent: Candidate,
        found: _Branching,
    ) -> _Branching:
        """Where a main line goes on from a reply that was extended before."""
        leaf = None
        try:
            branches = await self._turns.branches(tenant, parent.turn_id)
            if is_beside(request, resolution, branches):
                return replace(found, kind=Kind(TurnKind.UNKNOWN, "beside_line", 0.5))
            if may_roll_back(request, resolution):
                leaf = await self._turns.leaf(tenant, parent.session_id, parent.turn_id)
        except StoreError as error:
            log.warning("branches_not_looked_for", error=error.message)
            return found
        gone = beside(request, resolution, branches)
        discards = leaf is not None and rolled_back(request, resolution, leaf)
        back = leaf.turn_id if leaf is not None and discards else None
        return replace(
            found,
            rolled_back=None if back in gone else back,
            off_line=gone,
            given_up=given_up(branches),
        )


def _put_again(found: Found, branching: _Branching) -> _Branching:
    """What is asked over every reply and never gone on from was no word that a user took back."""
    parent = found.resolution.parent
    assert parent is not None
    keys = [echo.key for echo in found.echoes if echo.kind is EchoKind.WORDS]
    before = left_before(keys, found.candidates, parent)
    if before is None:
        return branching
    return replace(branching, off_line=(*branching.off_line, before.turn_id), retells=True)


def _log_decision(
    session: SessionRecord,
    resolution: Resolution,
    kind: Kind,
    retry: Candidate | None,
    back: UUID | None,
) -> None:
    parent = resolution.parent
    log.info(
        "decided",
        session_id=str(session.id),
        parent_session=str(session.parent_session_id) if session.parent_session_id else None,
        resolve_rule=resolution.rule,
        ambiguous=resolution.ambiguous,
        parent=str(parent.turn_id) if parent else None,
        retry_of=str(retry.turn_id) if retry else None,
        rolled_back=str(back) if back else None,
        branch_reason=resolution.branch_reason,
        kind=kind.kind,
        kind_rule=kind.rule,
        confidence=kind.confidence,
    )
