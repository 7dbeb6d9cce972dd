"""Where a request belongs: its session, the turn it continues, and what kind of call it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.classify import Classifier, Kind
from gateway.config import Settings
from gateway.errors import StoreError
from gateway.records import (
    Candidate,
    FinishReason,
    Principal,
    Resolution,
    SessionRecord,
    TurnRequest,
    new_id,
)
from gateway.resolve import (
    Attempt,
    NamedSession,
    Prefix,
    prefixes,
    request_hash,
    resolve,
    retry_of,
    seed,
)
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: How far back the first attempt of a retry may lie.
RETRY_WINDOW_S = 600.0


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
        found = prefixes(request.messages, start)
        named, candidates = await self._look_up(principal, request, found)
        resolution = resolve(request, found=found, named=named, candidates=candidates)
        kind = self._classifier.classify(request, resolution)
        session = SessionRecord(
            id=resolution.session_id or new_id(),
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            lineage_id=principal.lineage_id,
            external_id=request.session_name,
            resolved_by=resolution.rule,
            model=request.model,
            client=request.client,
            user=request.user,
            ambiguous=resolution.ambiguous,
            seen_at=now,
        )
        if self._debug:
            parent = resolution.parent
            log.info(
                "decided",
                session_id=str(session.id),
                resolve_rule=resolution.rule,
                ambiguous=resolution.ambiguous,
                parent=str(parent.turn_id) if parent else None,
                branch_reason=resolution.branch_reason,
                kind=kind.kind,
                kind_rule=kind.rule,
                confidence=kind.confidence,
            )
        digest = request_hash(request.messages, request.tools)
        return Place(
            session=session,
            resolution=resolution,
            kind=kind,
            seed=start,
            request_hash=digest,
            retry_of=await self._retry_of(principal, request, digest, now),
        )

    async def _retry_of(
        self, principal: Principal, request: TurnRequest, digest: bytes, now: float
    ) -> UUID | None:
        """The turn that a client which says it is trying again asks for again."""
        if not request.retry_count:
            return None
        try:
            stored = await self._turns.find_by_request(
                principal.tenant_id, principal.key_id, digest, now - RETRY_WINDOW_S
            )
        except StoreError:
            return None
        attempts = [
            Attempt(
                turn_id=turn.turn_id,
                request_hash=digest,
                idempotency_key=None,
                delivered=turn.finish_reason is not FinishReason.ABORT,
                created_at=turn.created_at,
            )
            for turn in stored
        ]
        return retry_of(request, digest, attempts, now)

    async def _look_up(
        self, principal: Principal, request: TurnRequest, found: Sequence[Prefix]
    ) -> tuple[NamedSession | None, Sequence[Candidate]]:
        tenant, name = principal.tenant_id, request.session_name
        named = None if name is None else NamedSession(id=None)
        try:
            if name is not None:
                named = await self._turns.named_session(tenant, name)
            return named, await self._turns.find_candidates(tenant, [each.hash for each in found])
        except StoreError as error:
            # Serving goes on without Postgres: the turn starts a session of its own.
            log.warning("resolve_without_store", error=error.message)
            return named, ()
