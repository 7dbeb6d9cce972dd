"""The figures of the swap bench against ones worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.swap import Plan
from bench.swap_figures import part, silences, summary, touched
from bench.swap_load import TOKENS, Reply
from bench.swap_spans import Score, Turn, checked, chosen, gaps_in_spans
from gateway.records import VersionSpan, new_id


def reply(began: float, ended: float, *times: float) -> Reply:
    return Reply(began=began, ended=ended, parts=list(times), reason="length")


def turn(*spans: tuple[int, int, int], length: int = TOKENS) -> Turn:
    return Turn(
        id=new_id(),
        prompt=(7, 8),
        ids=tuple(range(length)),
        logprobs=(-1.0,) * length,
        spans=tuple(VersionSpan(*span) for span in spans),
        finish="length",
        again=False,
    )


def test_a_pause_is_the_longest_silence_of_all_that_touches_the_swap() -> None:
    replies = [reply(0, 9, 1.0, 2.0, 5.0), reply(0, 9, 2.5, 6.0)]
    # Tokens at 1, 2, 2.5, 5, 6: the swap in [3, 4] falls into the silence from 2.5 to 5.
    assert silences(replies, [(3.0, 4.0)]) == [pytest.approx(2500)]
    assert silences(replies, [(5.5, 5.6)]) == [pytest.approx(1000)]
    # The one that begins before a swap and one that ends after it count whole.
    assert silences(replies, [(2.2, 2.6)]) == [pytest.approx(2500)]
    assert silences(replies, [(20.0, 21.0)]) == [0.0]


def test_a_request_is_touched_where_it_ran_during_a_swap() -> None:
    windows = [(10.0, 11.0)]
    assert touched(reply(9, 10.5), windows)
    assert touched(reply(10.2, 10.4), windows)
    assert touched(reply(10.9, 12), windows)
    assert not touched(reply(8, 9.9), windows)
    assert not touched(reply(11.1, 12), windows)


def test_a_reply_is_cut_where_it_ends_before_its_limit_without_a_stop() -> None:
    whole, cut, stopped, open_ended = (reply(0, 1) for _ in range(4))
    whole.tokens, cut.tokens, stopped.tokens, open_ended.tokens = TOKENS, 3, 3, TOKENS
    stopped.reason, open_ended.reason = "stop", None
    assert [one.truncated for one in (whole, cut, stopped, open_ended)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert [one.complete for one in (whole, cut, stopped)] == [True, False, False]


def test_the_summary_compares_requests_of_one_length_and_counts_what_went_wrong() -> None:
    turns = [turn((1, 0, TOKENS)), turn((1, 0, 4), (2, 4, TOKENS))]

    def whole(began: float, ended: float, on_record: Turn) -> Reply:
        one = reply(began, ended, ended)
        one.tokens, one.turn = TOKENS, str(on_record.id)
        return one

    calm, slow = whole(0.0, 0.1, turns[0]), whole(1.0, 1.4, turns[1])
    short, cut, refused = (whole(1.0, 9.0, turns[0]) for _ in range(3))
    short.tokens, short.reason = 1, "stop"
    cut.tokens = 3
    refused.why = "503: not now"
    lost = whole(9.0, 9.1, turn())
    replies = [calm, slow, short, cut, refused, lost]
    found = part(replies, turns, [(1.2, 1.3)], [40.0], again=2)
    assert found["why"] == ["503: not now"]
    assert summary([found]) == {
        "swaps": 1,
        "requests": 6,
        "failed": 1,
        "truncated": 1,
        "restarted": 2,
        "unstored": 1,
        "pause_ms_p50": 40.0,
        "pause_ms_p99": 40.0,
        "request_ms_p50": pytest.approx(100, abs=0.1),
        "added_ms_p50": pytest.approx(300, abs=0.1),
        "added_ms_p99": pytest.approx(300, abs=0.1),
        "spanning": 1,
    }


def test_a_baseline_is_shown_in_fewer_swaps(tmp_path: Path) -> None:
    plan = Plan(200, 2, 25, tmp_path)
    assert [sum(part[0] == way for part in plan.parts) for way in ("lora", "full")] == [16, 16]
    assert [part for part in plan.parts if part[0] == "baseline_503"] == [
        ("baseline_503", engines, number) for engines in (1, 2) for number in (0, 1)
    ]


def test_spans_must_tell_of_each_token_once() -> None:
    assert not gaps_in_spans(turn((1, 0, 4), (2, 4, TOKENS)))
    assert not gaps_in_spans(turn(length=0))
    for spans in ([(1, 0, 4)], [(1, 1, TOKENS)], [(1, 0, 5), (2, 4, TOKENS)]):
        assert gaps_in_spans(turn(*spans)), spans


async def test_spans_are_scored_by_the_weights_of_their_version_and_by_others() -> None:
    """Of four weights, those of version 6 are the third; nobody else computes what it did."""
    turns = [turn((6, 0, 4), (7, 4, TOKENS)), *(turn((5, 0, TOKENS)) for _ in range(4))]
    assert [span.version for _, span in chosen(turns)] == [6, 7, 5, 5, 5]
    asked: list[tuple[int, int]] = []

    async def weights(number: int) -> Score:
        async def score(ids: Sequence[int], start: int) -> list[float]:
            asked.append((start, number))
            # The engine has the weights of 6 and 5, not those that version 7 should have.
            right = (start, number) in {(2, 2), (2, 1)}
            return [-1.0 if right else -3.0] * (len(ids) - start)

        return score

    found = await checked(turns, weights, 4)
    # 7 - 3 is no weights of ours: wrong by its own, and by the others' as it should be. Version 6
    # is told apart by weights 1 but for what happens to be the same there.
    assert sorted(asked) == sorted([(2, 2), (2, 1), (6, 3), (6, 2), *[(2, 1)] * 3, *[(2, 0)] * 3])
    assert found == {"spans_checked": 5, "spans_told_apart": 4, "spans_wrong": 1}


def test_what_was_measured_is_kept_and_the_rest_is_due(tmp_path: Path) -> None:
    plan = Plan(5, 2, 2, tmp_path)
    assert [plan.size("lora", number) for number in range(3)] == [2, 2, 1]
    assert plan.parts == [
        (way, engines, number)
        for way in ("lora", "full", "baseline_503")
        for engines in (1, 2)
        for number in range(3)
    ]
    for way, engines, number in plan.parts[:-1]:
        found = part([], [], [(0.0, 1.0)] * plan.size(way, number), [10.0 * engines + number], 0)
        plan.keep(way, engines, number, found)
    later = Plan(5, 2, 2, tmp_path)
    assert later.due() == [("baseline_503", 2, 2)]
    later.keep("baseline_503", 2, 2, part([], [], [(0.0, 1.0)], [22.0], 0))
    report = later.report()
    assert report["lora"]["swaps"] == 5
    assert report["full"]["pause_ms_p50"] == 11.0
    assert report["two_engines"]["baseline_503"]["pause_ms_p50"] == 21.0
