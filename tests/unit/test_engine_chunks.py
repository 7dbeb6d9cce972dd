from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import msgspec
import pytest

from gateway.engine.chunks import ChunkReader, parse_weight_version, weight_version
from gateway.engine.codec import Event
from gateway.errors import EngineOverloaded, EngineRejected, EngineUnavailable
from gateway.records import FinishReason, PolicyKind, PolicyRef, VersionSpan

LINEAGE = UUID(int=5)
LORA = PolicyRef(lineage_id=LINEAGE, version=3, kind=PolicyKind.LORA, uri="/weights/3")
FULL = PolicyRef(lineage_id=LINEAGE, version=3, kind=PolicyKind.FULL, uri="/weights/3")


def event(
    ids: list[int],
    logprobs: list[float | None],
    completed: int,
    reason: dict[str, Any] | None = None,
    *,
    entry_ids: list[int] | None = None,
    versions: list[tuple[str, int, int]] | None = None,
    kept: list[list[int]] | None = None,
    among: list[float | None] | None = None,
) -> Event:
    named = ids if entry_ids is None else entry_ids
    meta: dict[str, Any] = {
        "finish_reason": reason,
        "completion_tokens": completed,
        "cached_tokens": 9,
        "output_token_logprobs": list(zip(logprobs, named, [None] * len(named), strict=False)),
    }
    if kept is not None:
        meta |= {"output_token_sampling_mask": kept, "output_token_sampling_logprobs": among}
    if versions is not None:
        meta["weight_versions"] = [
            {"version": name, "start": start, "end": end} for name, start, end in versions
        ]
    return msgspec.convert({"output_ids": ids, "meta_info": meta}, Event)


STOP = {"type": "stop", "matched": 7}


def test_deltas_are_handed_on_as_they_come() -> None:
    reader = ChunkReader(LORA, "e")
    first = reader.read(event([5], [-1.0], 1))
    last = reader.read(event([6, 7], [-2.0, -3.0], 3, STOP))
    assert first is not None
    assert last is not None
    assert (first.ids, first.logprobs, first.finish) == ((5,), (-1.0,), None)
    assert (last.ids, last.logprobs) == ((6, 7), (-2.0, -3.0))
    assert last.finish is not None
    assert (last.finish.reason, last.finish.matched) == (FinishReason.STOP, 7)
    assert last.finish.spans == (VersionSpan(3, 0, 3),)
    assert (last.finish.cached_tokens, last.finish.detail) == (9, None)


def test_a_cumulative_server_is_understood() -> None:
    reader = ChunkReader(LORA, "e")
    chunks = [
        reader.read(event([5, 6], [-1.0, -2.0], 2)),
        reader.read(event([5, 6], [-1.0, -2.0], 2)),
        reader.read(event([5, 6, 7], [-1.0, -2.0, -3.0], 3, STOP)),
    ]
    assert chunks[1] is None
    assert [chunk.ids for chunk in chunks if chunk] == [(5, 6), (7,)]
    assert [chunk.logprobs for chunk in chunks if chunk] == [(-1.0, -2.0), (-3.0,)]
    assert chunks[2] is not None
    assert chunks[2].finish is not None
    assert chunks[2].finish.detail is None


def test_sets_that_were_sampled_from_come_with_the_values_among_them() -> None:
    """Beside the tokens, or of all tokens so far, as the server is set."""
    events = (
        event([5], [-9.0], 1, kept=[[5, 8]], among=[-0.5]),
        event([6, 7], [-9.0, -9.0], 3, STOP, kept=[[6], [1, 7]], among=[0.0, -1.5]),
    )
    reader = ChunkReader(LORA, "e")
    first, last = reader.read(events[0]), reader.read(events[1])
    assert first is not None
    assert last is not None
    assert (first.kept, first.logprobs) == (([5, 8],), (-0.5,))
    assert (last.kept, last.logprobs) == (([6], [1, 7]), (0.0, -1.5))
    reader = ChunkReader(LORA, "e")
    whole = event([5, 6], [-9.0, -9.0], 2, STOP, kept=[[5, 8], [6]], among=[-0.5, None])
    reader.read(events[0])
    last = reader.read(whole)
    assert last is not None
    assert (last.ids, last.kept) == ((6,), ([6],))
    assert last.finish is not None
    assert last.finish.detail == "logprob_not_finite"


def test_one_at_a_time_or_many_at_once_is_the_same() -> None:
    payloads = [
        msgspec.json.encode(event([n], [-9.0], n - 4, kept=[[n, 1]], among=[-0.5])) for n in (5, 6)
    ]
    reader = ChunkReader(LORA, "e")
    chunk = reader.fed(payloads)
    assert reader.broken is None
    assert chunk is not None
    assert (chunk.ids, chunk.logprobs) == ((5, 6), (-0.5, -0.5))
    assert chunk.kept == ([5, 1], [6, 1])


@pytest.mark.parametrize(
    ("last", "detail"),
    [
        (event([6], [], 2, STOP), "logprob_mismatch"),
        (event([6], [-1.0], 2, STOP, entry_ids=[8]), "logprob_mismatch"),
        (event([6], [-1.0], 9, STOP), "ids_mismatch"),
        (event([6], [None], 2, STOP), "logprob_not_finite"),
    ],
)
def test_what_does_not_fit_is_passed_on_and_named(last: Event, detail: str) -> None:
    reader = ChunkReader(LORA, "e")
    reader.read(event([5], [-1.0], 1))
    chunk = reader.read(last)
    assert chunk is not None
    assert chunk.ids == (6,)
    assert chunk.finish is not None
    assert chunk.finish.detail == detail


def test_a_mismatch_in_the_middle_is_still_named_at_the_end() -> None:
    reader = ChunkReader(LORA, "e")
    middle = reader.read(event([5], [None], 1))
    last = reader.read(event([6], [-1.0], 2, STOP))
    assert middle is not None
    assert math.isnan(middle.logprobs[0])
    assert last is not None
    assert last.finish is not None
    assert last.finish.detail == "logprob_not_finite"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Failed to compile json grammar", EngineRejected),
        (503, "The request queue is full.", EngineOverloaded),
        (500, "out of memory", EngineUnavailable),
    ],
)
def test_an_abort_before_the_first_token_is_a_refusal(
    status: int, message: str, kind: type[Exception]
) -> None:
    # The server puts an id of its own into such an event; it was not sampled.
    reason = {"type": "abort", "status_code": status, "message": message}
    with pytest.raises(kind, match=message):
        ChunkReader(LORA, "e").read(event([72], [], 1, reason))


def test_an_abort_later_ends_the_reply_with_what_was_sampled() -> None:
    reader = ChunkReader(LORA, "e")
    reader.read(event([5], [-1.0], 1))
    chunk = reader.read(
        event([72], [], 2, {"type": "abort", "status_code": 500, "message": "memory"})
    )
    assert chunk is not None
    assert (chunk.ids, chunk.logprobs) == ((), ())
    assert chunk.finish is not None
    assert (chunk.finish.reason, chunk.finish.detail) == (FinishReason.ABORT, "memory")
    assert chunk.finish.spans == (VersionSpan(3, 0, 1),)


def test_an_abort_on_request_keeps_its_last_token() -> None:
    reader = ChunkReader(LORA, "e")
    chunk = reader.read(event([5], [-1.0], 1, {"type": "abort", "message": "Aborted"}))
    assert chunk is not None
    assert chunk.ids == (5,)
    assert chunk.finish is not None
    assert (chunk.finish.reason, chunk.finish.detail) == (FinishReason.ABORT, "Aborted")


def test_full_weights_take_the_engines_spans() -> None:
    reader = ChunkReader(FULL, "e")
    versions = [("default", 0, 0), (f"{LINEAGE.hex}-v3", 0, 2), (f"{LINEAGE.hex}-v4", 2, 3)]
    chunk = reader.read(event([5, 6, 7], [-1.0] * 3, 3, STOP, versions=versions))
    assert chunk is not None
    assert chunk.finish is not None
    assert chunk.finish.spans == (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))


def test_weights_of_someone_else_are_not_taken_for_ours() -> None:
    reader = ChunkReader(FULL, "e")
    other = UUID(int=6)
    chunk = reader.read(event([5], [-1.0], 1, STOP, versions=[(f"{other.hex}-v3", 0, 1)]))
    assert chunk is not None
    assert chunk.finish is not None
    assert (chunk.finish.spans, chunk.finish.detail) == ((), "version_unknown")


def test_weight_versions_name_their_lineage() -> None:
    assert weight_version(FULL) == f"{LINEAGE.hex}-v3"
    assert parse_weight_version(weight_version(FULL), FULL) == 3
    assert parse_weight_version("default", FULL) == 0
    for name in ("3", f"{LINEAGE.hex}-vx", f"{LINEAGE.hex}-v-1", "-v3"):
        assert parse_weight_version(name, FULL) is None
