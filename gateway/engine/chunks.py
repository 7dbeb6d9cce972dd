"""From the events of one generation to chunks, exactly as sampled."""

from __future__ import annotations

import math

from gateway.engine.codec import Event, Reason, Span, logprob_values, ranked, refusal
from gateway.errors import EngineUnavailable
from gateway.records import Chunk, Finish, FinishReason, PolicyKind, PolicyRef, VersionSpan

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class ChunkReader:
    """Turns events into chunks and keeps count, so that nothing is lost, doubled or padded.

    Ids or log-probabilities that do not fit are handed on as they came, and `Finish.detail` says
    `ids_mismatch`, `logprob_mismatch` or `logprob_not_finite`.
    """

    def __init__(self, policy: PolicyRef, engine: str) -> None:
        self._policy = policy
        self._engine = engine
        self._seen = 0
        self._detail: str | None = None

    def read(self, event: Event) -> Chunk | None:
        """The chunk that an event brings, None where it brings nothing.

        Raises the engine's refusal where the event is one and nothing was sampled before.
        """
        if event.error is not None:
            raise refusal(event.error.code or 500, event.error.message, self._engine)
        meta = event.meta_info
        reason = meta.finish_reason
        ids, entries = event.output_ids, meta.output_token_logprobs or []
        places = meta.output_top_logprobs or []
        if reason is not None and (reason.status_code or 0) >= 400 and not (self._seen and entries):
            return self._aborted(reason)
        if self._seen and len(ids) == meta.completion_tokens:
            ids, entries = ids[self._seen :], entries[self._seen :]
            places = places[self._seen :]
        self._seen += len(ids)
        logprobs = logprob_values(entries)
        if self._seen != meta.completion_tokens:
            self._note("ids_mismatch")
        if [token for _, token, _ in entries] != ids:
            self._note("logprob_mismatch")
        elif not all(map(math.isfinite, logprobs)):
            self._note("logprob_not_finite")
        finish = None
        if reason is not None:
            finish = Finish(
                reason=_REASONS.get(reason.type, FinishReason.ABORT),
                matched=reason.matched,
                spans=self._spans(meta.weight_versions or []),
                cached_tokens=meta.cached_tokens,
                detail=self._detail or reason.message,
            )
        if not ids and not logprobs and finish is None:
            return None
        return Chunk(ids=tuple(ids), logprobs=logprobs, top=ranked(places), finish=finish)

    def _aborted(self, reason: Reason) -> Chunk:
        """The engine gave up: a refusal at the start, an end later on.

        It fills such an event with an id that it did not sample and that has no log-probability.
        """
        message = reason.message or "the request was aborted"
        if not self._seen:
            raise refusal(reason.status_code or 500, message, self._engine)
        return Chunk(
            finish=Finish(
                reason=FinishReason.ABORT,
                spans=self._whole(),
                detail=self._detail or message,
            )
        )

    def _note(self, detail: str) -> None:
        self._detail = self._detail or detail

    def _whole(self) -> tuple[VersionSpan, ...]:
        if not self._seen:
            return ()
        return (VersionSpan(self._policy.version, 0, self._seen),)

    def _spans(self, spans: list[Span]) -> tuple[VersionSpan, ...]:
        """Which version sampled which tokens.

        The engine's word where weights are swapped whole, the version that the request named
        otherwise, because no field of the reply names an adapter.
        """
        if self._policy.kind is not PolicyKind.FULL:
            return self._whole()
        found = []
        for span in spans:
            version = parse_weight_version(span.version, self._policy)
            if version is None:
                self._note("version_unknown")
                return ()
            if span.end > span.start:
                found.append(VersionSpan(version, span.start, span.end))
        return tuple(found)

    def ended(self) -> EngineUnavailable:
        """The error for a stream that stopped before it finished."""
        return EngineUnavailable(
            f"the stream ended after {self._seen} tokens, before the generation did",
            engine=self._engine,
        )


def weight_version(policy: PolicyRef) -> str:
    """The name by which an engine reports a full version."""
    return f"{policy.lineage_id.hex}-v{policy.version}"


def parse_weight_version(name: str, policy: PolicyRef) -> int | None:
    """The version that a reported name means in the lineage of `policy`; `default` is the base."""
    if name == "default":
        return 0
    lineage, _, number = name.rpartition("-v")
    return int(number) if lineage == policy.lineage_id.hex and number.isdecimal() else None
