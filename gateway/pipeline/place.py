"""Where a request belongs: its session, the turn it continues, and what kind of call it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.classify import Classifier, Kind
from gateway.config import Settings
from gateway.errors import StoreError
from gateway.records import (
    Candidate,
    Principal,
    Resolution,
    SessionRecord,
    TurnRequest,
    new_id,
)
from gateway.resolve import (
    RETRY_WINDOW_S,
    NamedSession,
    echoed,
    prefixes,
    request_hash,
    resolve,
    retried,
    seed,
    told_session,
)
from gateway.store.recent import Wanted
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    session: SessionRecord
    resolution: Resolution
    kind: Kind
    seed: bytes
    request_hash: bytes
    retry_of: UUID | None


class Placer:
    """Looks up what is stored and lets the pure rules decide."""

    def __init__(self, settings: Settings, turns: TurnStore) -> None:
        self._classifier = Classifier(settings.session_awareness)
        self._debug = settings.gateway.debug_decisions
        self._turns = turns

    async def place(self, principal: Principal, request: TurnRequest, now: float) -> Place:
        """Place a request inside the tenant of its key. Raises nothing for a Postgres outage."""
        start = seed(principal.key_id, request.model)
        digest = request_hash(request.messages, request.tools, start)
        found, echoes = prefixes(request.messages, start), echoed(request.messages, start)
        name = request.session_name or told_session(request.messages)
        wanted = Wanted(
            chains=[prefix.hash for prefix in found],
            echoes=[echo.key for echo in echoes],
            request=digest,
            since=now - RETRY_WINDOW_S,
            previous=request.previous_turn,
        )
        names = [each for each in (name, request.parent_session_name) if each is not None]
        sessions, candidates = await self._look_up(principal, names, wanted)
        named = None if name is None else sessions.get(name, NamedSession(id=None))
        retry = retried(request, digest, _attempts(candidates, named), now)
        resolution = resolve(
            request, found=found, named=named, candidates=candidates, echoes=echoes, retry=retry
        )
        kind = self._classifier.classify(request, resolution)
        caller = sessions.get(request.parent_session_name or "")
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
            _log_decision(session, resolution, kind, retry)
        return Place(
            session=session,
            resolution=resolution,
            kind=kind,
            seed=start,
            request_hash=digest,
            retry_of=retry.turn_id if retry else None,
        )

    async def _look_up(
        self, principal: Principal, names: Sequence[str], wanted: Wanted
    ) -> tuple[Mapping[str, NamedSession], Sequence[Candidate]]:
        tenant = principal.tenant_id
        try:
            sessions = await self._turns.named_sessions(tenant, names) if names else {}
            return sessions, await self._turns.find_candidates(tenant, wanted)
        except StoreError as error:
            # Serving goes on without Postgres, with what this process has stored itself.
            log.warning("resolve_without_store", error=error.message)
            sessions = self._turns.recent_sessions(tenant, names)
            return sessions, self._turns.recent_candidates(tenant, wanted)


def _attempts(candidates: Iterable[Candidate], named: NamedSession | None) -> list[Candidate]:
    """Two sessions that ask the same are no retry of each other."""
    return [turn for turn in candidates if named is None or turn.session_id == named.id]


def _log_decision(
    session: SessionRecord, resolution: Resolution, kind: Kind, retry: Candidate | None
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
        branch_reason=resolution.branch_reason,
        kind=kind.kind,
        kind_rule=kind.rule,
        confidence=kind.confidence,
    )
