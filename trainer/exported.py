"""Samples as lines of JSON: what was trained on, or could be, exactly as sampled (pure).

A line holds `ids` (prompt and reply), and of the same length `mask` (1 where a token was sampled),
`logprobs` (0 elsewhere) and `versions` (the policy that sampled a token, -1 elsewhere), besides
`score`, `weight`, `temperature` and what names the sample. `teaching` is what a teacher that was
given a hint says of the sampled tokens, those whose mask is 1; `kept` are the ids that each of
them was sampled from, where sampling was truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from uuid import UUID

import msgspec

from gateway.errors import TrainerError
from gateway.records import FinishReason, Teaching, TrainingSample, VersionSpan


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """A teacher's log-probabilities at temperature 1, a value or a row a sampled token."""

    teacher: str
    lineage_id: UUID | None
    version: int | None
    model: str
    hint: str
    prompt_len: int
    logprobs: list[float]
    top_ids: list[list[int]] = []
    top_logprobs: list[list[float]] = []


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
    depth: int = 0
    state: str = "ready"
    reason: str | None = None
    teaching: Taught | None = None
    kept: list[list[int]] | None = None


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
        depth=sample.depth,
        state=state,
        reason=reason,
        teaching=None if sample.teaching is None else _taught(sample.teaching),
        kept=None if sample.kept is None else [list(row) for row in sample.kept],
    )


def _taught(teaching: Teaching) -> Taught:
    return Taught(
        teacher=teaching.teacher,
        lineage_id=teaching.lineage_id,
        version=teaching.version,
        model=teaching.model,
        hint=teaching.hint,
        prompt_len=teaching.prompt_len,
        logprobs=list(teaching.logprobs),
        top_ids=[list(row) for row in teaching.top_ids],
        top_logprobs=[list(row) for row in teaching.top_logprobs],
    )


def encode(line: Line) -> bytes:
    """One line of a file, its end included."""
    return msgspec.json.encode(line) + b"\n"


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
        depth=line.depth,
        teaching=None if line.teaching is None else _teaching(line.teaching),
        kept=line.kept,
    )


def _teaching(taught: Taught) -> Teaching:
    return Teaching(**{name: getattr(taught, name) for name in taught.__struct_fields__})
