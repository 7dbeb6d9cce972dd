"""Which stored turns a request may continue, and which of them it does.

Nearly every request of an agent goes on from its own last reply, and a few keys tell. Only where
they do not is everything looked for by which a turn is known again: each prefix of the history, and
what is left of it where it was rewritten or dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from gateway.errors import StoreError
from gateway.records import Candidate, Principal, Resolution, TurnRequest
from gateway.resolve import (
    RETRY_WINDOW_S,
    Echo,
    NamedSession,
    Prefix,
    Voices,
    both_hashes,
    chain,
    echoed,
    echoed_near,
    prefixes,
    resolve,
    retried,
    seed,
)
from gateway.store.turns import TurnStore
from gateway.store.wanted import Wanted
from gateway.telemetry import get_logger

log = get_logger(__name__)


class Keys(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request is found by: `start` and `chain` by `resolve.chain`, `head` by `head_hash`.

    `prefixes` are those that end in a reply, the deepest first, and `voices` who speaks where.
    """

    start: bytes
    request: bytes
    chain: list[bytes]
    prefixes: list[Prefix]
    head: bytes
    voices: Voices

    @classmethod
    def of(cls, request: TurnRequest, key_id: UUID) -> Keys:
        messages, key = request.messages, request.hash_key
        voices = Voices.of(messages)
        start = seed(key_id, request.model, key)
        hashes = chain(messages, start, key, voices.apart)
        whole, head = both_hashes(messages, request.tools, start, key, voices)
        return cls(
            start=start,
            request=whole,
            chain=hashes,
            prefixes=prefixes(messages, start, hashes) if voices.replies else [],
            head=head,
            voices=voices,
        )


class Found(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was decided, and from what: turns of the tenant, and the keys that they have."""

    resolution: Resolution
    retry: Candidate | None
    candidates: Sequence[Candidate]
    echoes: Sequence[Echo]


class Search:
    """What is stored for one request. Raises nothing for a Postgres outage.

    Once Postgres has not answered it is not waited for again: what this process has stored serves.
    """

    def __init__(
        self, turns: TurnStore, principal: Principal, request: TurnRequest, now: float
    ) -> None:
        self.keys = Keys.of(request, principal.key_id)
        self._turns, self._tenant_id = turns, principal.tenant_id
        self._request, self._now = request, now
        self._away = False

    async def sessions(self, names: Sequence[str]) -> Mapping[str, NamedSession]:
        """The sessions that a client named, by those names."""
        if not names:
            return {}
        try:
            return await self._turns.named_sessions(self._tenant_id, names)
        except StoreError as error:
            self._gone(error)
            return self._turns.recent_sessions(self._tenant_id, names)

    async def found(self, named: NamedSession | None) -> Found:
        """Where the request belongs; `named` is the session that its client named."""
        messages, keys = self._request.messages, self.keys
        # With few keys first; with all of them where those decide nothing.
        near = bool(keys.prefixes) and self._request.previous_turn is None
        while True:
            known = keys.prefixes[:1] if near else keys.prefixes
            find = echoed_near if near else echoed
            echoes = find(messages, keys.start, keys.head, keys.voices)
            wanted = Wanted(
                chains=[prefix.hash for prefix in known],
                echoes=[echo.key for echo in echoes],
                request=keys.request,
                since=self._now - RETRY_WINDOW_S,
                previous=self._request.previous_turn,
            )
            candidates: Sequence[Candidate] | None = None
            if not self._away:
                try:
                    candidates = await self._turns.find_candidates(self._tenant_id, wanted)
                except StoreError as error:
                    self._gone(error)
            if candidates is None:
                candidates = self._turns.recent_candidates(self._tenant_id, wanted)
            found = self._decided(known, echoes, candidates, named)
            if not near or _is_certain(found):
                return found
            near = False

    def _decided(
        self,
        found: Sequence[Prefix],
        echoes: Sequence[Echo],
        candidates: Sequence[Candidate],
        named: NamedSession | None,
    ) -> Found:
        """What follows from the turns that have some of the keys."""
        request, keys = self._request, self.keys
        retry = None
        if candidates:
            # Two sessions that ask the same are no retry of each other.
            attempts = candidates
            if named is not None:
                attempts = [turn for turn in candidates if turn.session_id == named.id]
            retry = retried(request, keys.request, attempts, self._now)
        resolution = resolve(
            request,
            found=found,
            named=named,
            candidates=candidates,
            echoes=echoes,
            retry=retry,
            head=keys.head,
        )
        return Found(resolution=resolution, retry=retry, candidates=candidates, echoes=echoes)

    def _gone(self, error: StoreError) -> None:
        self._away = True
        log.warning("resolve_without_store", error=error.message)


def _is_certain(near: Found) -> bool:
    """Whether no turn that is known by less could change what the few keys decided.

    They know a turn by the whole history or by an id that was minted here, before which nothing
    counts. A retry takes the place of its first attempt, wherever that was.
    """
    found = near.resolution
    return near.retry is None and (found.parent is not None or found.ambiguous)
