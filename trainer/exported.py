"""Samples as lines of JSON: what was trained on, or could be, exactly as sampled (pure).

A line holds `ids` (prompt and reply), and of the same length `mask` (1 where a token was sampled),
`logprobs` (0 elsewhere) and `versions` (the policy that sampled a token, -1 elsewhere), besides
`score`, `weight`, `temperature` and what names the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import TrainerError
from gateway.records import FinishReason, TrainingSample, VersionSpan


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of an export; `state` and `reason` say what became of it."""

    id: UUID
    turn_id: UUID
    session_id: UUID
    user: str
    score: float
    weight: float
    temperature: float
    finish_reason: str
    arrived_at: float
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]
    rule: str | None = None
    group: str | None = None
    state: str = "ready"
    reason: str | None = None


def to_line(sample: TrainingSample, state: str = "ready", reason: str | None = None) -> Line:
    prompt, reply = list(sample.prompt_ids), list(sample.sampled_ids)
    versions = [-1] * len(reply)
    for span in sample.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    nothing = len(prompt)
    return Line(
        id=sample.id,
        turn_id=sample.turn_id,
        session_id=sample.session_id,
        user=sample.user,
        score=sample.score,
        weight=sample.weight,
        temperature=sample.temperature,
        finish_reason=sample.finish_reason.value,
        arrived_at=sample.arrived_at,
        ids=prompt + reply,
        mask=[0] * nothing + [1] * len(reply),
        logprobs=[0.0] * nothing + list(sample.logprobs),
        versions=[-1] * nothing + versions,
        rule=sample.rule,
        group=sample.group,
        state=state,
        reason=reason,
    )


def encode(line: Line) -> bytes:
    """One line of a file, its end included."""
    return msgspec.json.encode(line) + b"\n"


def table_row(line: Line) -> dict[str, Any]:
    """A row for columns: ids as text."""
    row: dict[str, Any] = msgspec.to_builtins(line)
    return row


def decode(lines: Iterable[bytes]) -> Iterator[TrainingSample]:
    """The samples of a file. Raises TrainerError that names the first line that is not one."""
    decoder = msgspec.json.Decoder(Line)
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            yield _sample(decoder.decode(raw))
        except (msgspec.DecodeError, ValueError) as error:
            raise TrainerError(f"line {number} is no sample: {error}") from None


def _sample(line: Line) -> TrainingSample:
    length = len(line.ids)
    if not len(line.mask) == len(line.logprobs) == len(line.versions) == length:
        raise ValueError("ids, mask, logprobs and versions differ in length")
    start = line.mask.index(1) if 1 in line.mask else length
    if line.mask != [0] * start + [1] * (length - start):
        raise ValueError("the sampled tokens must be the last ones")
    spans, place = [], 0
    for version, run in groupby(line.versions[start:]):
        end = place + len(list(run))
        if version < 0:
            raise ValueError("a sampled token has no version")
        spans.append(VersionSpan(version, place, end))
        place = end
    return TrainingSample(
        id=line.id,
        turn_id=line.turn_id,
        session_id=line.session_id,
        user=line.user,
        score=line.score,
        weight=line.weight,
        prompt_ids=line.ids[:start],
        sampled_ids=line.ids[start:],
        logprobs=line.logprobs[start:],
        spans=tuple(spans),
        temperature=line.temperature,
        finish_reason=FinishReason(line.finish_reason),
        arrived_at=line.arrived_at,
        rule=line.rule,
        group=line.group,
    )
