from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.one_by_one import OneByOne
from gateway.pipeline.turn import joined
from gateway.records import Delta


def opened(index: int) -> Delta:
    return Delta(call_index=index, call_id=f"c{index}", call_name="f")


def more(index: int, arguments: str) -> Delta:
    return Delta(call_index=index, arguments=arguments)


def fed(deltas: list[Delta]) -> list[list[Delta]]:
    """What is told as each comes, and in the end."""
    order = OneByOne()
    return [*(order.take([delta]) for delta in deltas), order.finish()]


def test_what_comes_in_order_is_told_at_once() -> None:
    deltas = [
        Delta(reasoning="hm"), Delta(text="a"), opened(0), more(0, '{"a"'), more(0, ":1}"),
        opened(1), more(1, "{}"), Delta(text="b"), Delta(text="c"),
    ]  # fmt: skip
    assert fed(deltas) == [*([delta] for delta in deltas), []]


def test_a_call_waits_for_the_one_before_it() -> None:
    told = fed(
        [opened(0), opened(1), more(0, '{"a":'), more(1, '{"b"'), more(0, "1}"), more(1, ":2}")]
    )
    assert told == [
        [opened(0)], [], [more(0, '{"a":')], [],
        # Now the first is whole, and what there is of the second follows.
        [more(0, "1}"), opened(1), more(1, '{"b"')],
        [more(1, ":2}")],
        [],
    ]  # fmt: skip


def test_what_is_never_whole_is_over_with_the_reply() -> None:
    told = fed([opened(0), opened(1), Delta(text="x"), more(1, "{}"), more(0, '{"a"')])
    assert told == [
        [opened(0)], [], [], [], [more(0, '{"a"')], [opened(1), more(1, "{}"), Delta(text="x")],
    ]  # fmt: skip


def test_arguments_that_were_whole_and_told_are_not_gone_on_with() -> None:
    told = fed([opened(0), more(0, "{}"), opened(1), more(0, " "), more(1, "[]")])
    assert told == [[opened(0)], [more(0, "{}")], [opened(1)], [], [more(1, "[]")], []]


ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', '{"b": "é}{"}', "", '{"cut', "[1]"])


@st.composite
def mixed(draw: st.DrawFn) -> list[Delta]:
    """Calls, each in pieces, and words, in any order that keeps each one's own."""
    lanes: list[list[Delta]] = [
        [Delta(text=word) for word in draw(st.lists(st.just("w "), max_size=3))]
    ]
    for index in range(draw(st.integers(1, 4))):
        text = draw(ARGUMENTS)
        at = draw(st.integers(0, len(text)))
        pieces = [piece for piece in (text[:at], text[at:]) if piece]
        lanes.append([opened(index), *(more(index, piece) for piece in pieces)])
    found: list[Delta] = []
    while any(lanes):
        lane = draw(st.sampled_from([lane for lane in lanes if lane]))
        found.append(lane.pop(0))
    return found


@given(deltas=mixed())
def test_nothing_is_lost_and_no_call_is_opened_again(deltas: list[Delta]) -> None:
    told = [delta for part in fed(deltas) for delta in part]
    assert joined(told) == joined(deltas)
    runs = [index for index, _ in groupby(told, key=lambda one: one.call_index)]
    calls = [index for index in runs if index is not None]
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize("whole", ["{}", '{"a": [1, {"b": "}"}]}', '"x"'])
def test_the_next_call_is_told_as_soon_as_the_one_before_is_whole(whole: str) -> None:
    for at in range(1, len(whole)):
        told = fed([opened(0), more(0, whole[:at]), opened(1), more(0, whole[at:])])
        assert told[2:] == [[], [more(0, whole[at:]), opened(1)], []]
