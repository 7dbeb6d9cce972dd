"""From the events of one generation to chunks, exactly as sampled."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from gateway.engine.codec import (
    Event,
    Reason,
    Span,
    decode,
    numbers,
    ranked,
    refusal,
    unreadable,
    unzipped,
)
from gateway.errors import EngineError, EngineUnavailable
from gateway.records import (
    Chunk,
    Finish,
    FinishReason,
    PolicyKind,
    PolicyRef,
    Ranked,
    VersionSpan,
)

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
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[Ranked] = []
        self._kept: list[list[int]] = []
        self._finish: Finish | None = None
        self.broken: EngineError | None = None

    def fed(self, payloads: Iterable[bytes]) -> Chunk | None:
        """One chunk of what events bring, up to the first that is an error: it is `broken` by that.

        What came before it in the same breath was sampled all the same.
        """
        try:
            for payload in payloads:
                event = decode(payload)
                if self._finish is not None:
                    continue
                if event.meta_info.finish_reason is not None or not self._took_one(event):
                    self.add(event)
        except msgspec.DecodeError as error:
            self.broken = unreadable(error, self._engine)
        except EngineError as error:
            self.broken = error
        return self.take()

    def read(self, event: Event) -> Chunk | None:
        """The chunk that one event brings, None where it brings nothing. Raises as `add` does."""
        self.add(event)
        return self.take()

    def take(self) -> Chunk | None:
        """What has been added since, as one chunk; None where that is nothing."""
        ids, logprobs, top, finish = self._ids, self._logprobs, self._top, self._finish
        if not ids and not logprobs and finish is None:
            return None
        kept = self._kept
        self._ids, self._logprobs, self._top, self._finish = [], [], [], None
        self._kept = []
        return Chunk(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            top=tuple(top) if top and any(top) else (),
            kept=tuple(kept),
            finish=finish,
        )

    def add(self, event: Event) -> None:
        """Take an event in; those after the one that finishes say nothing.

        Raises the engine's refusal where the event is one and nothing was sampled before.
        """
        if self._finish is not None:
            return
        if event.error is not None:
            raise refusal(event.error.code or 500, event.error.message, self._engine)
        meta = event.meta_info
        reason = meta.finish_reason
        ids, entries = event.output_ids, meta.output_token_logprobs or []
        places = meta.output_top_logprobs or []
        # The ids that each token was sampled from, and its log-probability among them.
        kept = meta.output_token_sampling_mask or []
        among = meta.output_token_sampling_logprobs or []
        if reason is not None and (reason.status_code or 0) >= 400 and not (self._seen and entries):
            self._finish = self._aborted(reason)
            return
        if self._seen and len(ids) == meta.completion_tokens:
            ids, entries = ids[self._seen :], entries[self._seen :]
            places = places[self._seen :]
            kept, among = kept[self._seen :], among[self._seen :]
        self._seen += len(ids)
        values, named = unzipped(entries)
        logprobs = numbers(among) if among else values
        if self._seen != meta.completion_tokens:
            self._note("ids_mismatch")
        if list(named) != ids:
            self._note("logprob_mismatch")
        elif not all(map(math.isfinite, logprobs)):
            self._note("logprob_not_finite")
        self._ids += ids
        self._logprobs += logprobs
        self._top += ranked(places) if places else ()
        self._kept += kept
        if reason is not None:
            # No field of the reply names an adapter: it is the version that the request named.
            full = self._policy.kind is PolicyKind.FULL
            self._finish = Finish(
                reason=_REASONS.get(reason.type, FinishReason.ABORT),
                matched=reason.matched,
                spans=self._spans(meta.weight_versions or []) if full else self._whole(),
                cached_tokens=meta.cached_tokens,
                prompt_tokens=meta.prompt_tokens,
                detail=self._detail or reason.message,
            )

    def _took_one(self, event: Event) -> bool:
        """Take in what nearly every event is, one token and nothing else; whether it was that."""
        meta, ids = event.meta_info, event.output_ids
        entries = meta.output_token_logprobs
        if (
            entries is None
            or len(ids) != 1
            or len(entries) != 1
            or meta.completion_tokens != self._seen + 1
            or meta.finish_reason is not None
            or meta.output_top_logprobs
            or meta.output_token_sampling_mask
            or event.error is not None
        ):
            return False
        value, token, _ = entries[0]
        if token != ids[0] or value is None or not math.isfinite(value):
            return False
        self._seen += 1
        self._ids.append(token)
        self._logprobs.append(value)
        return True

    def _aborted(self, reason: Reason) -> Finish:
        """The engine gave up: a refusal at the start, an end later on.

        It fills such an event with an id that it did not sample and that has no log-probability.
        """
        message = reason.message or "the request was aborted"
        if not self._seen:
            raise refusal(reason.status_code or 500, message, self._engine)
        return Finish(
            reason=FinishReason.ABORT, spans=self._whole(), detail=self._detail or message
        )

    def _note(self, detail: str) -> None:
        self._detail = self._detail or detail

    def _whole(self) -> tuple[VersionSpan, ...]:
        if not self._seen:
            return ()
        return (VersionSpan(self._policy.version, 0, self._seen),)

    def _spans(self, spans: list[Span]) -> tuple[VersionSpan, ...]:
        """Which version sampled which tokens, in the engine's word: weights are swapped whole."""
        found = []
        for span in spans:
            if span.end <= span.start:
                # A name that it had for a while, when it sampled nothing.
                continue
            version = parse_weight_version(span.version, self._policy)
            if version is None:
                self._note("version_unknown")
                return ()
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


def reports(name: str | None, policy: PolicyRef) -> bool:
    """Whether an engine that reports this name has a version's weights."""
    return name is not None and parse_weight_version(name, policy) == policy.version
