"""Looking through token ids, few and many."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import pytest

from gateway.records import first_outside, holds, packed_ids

MANY = 20_000


@pytest.mark.parametrize("count", [1, 128, 129, MANY])
@pytest.mark.parametrize("packed", [True, False])
def test_an_id_is_found_wherever_it_stands(count: int, packed: bool) -> None:
    ids: Sequence[int] = list(range(count))
    ids = packed_ids(ids) if packed else ids
    for there in (0, count // 2, count - 1):
        assert holds(ids, there)
    for absent in (count, -1, 2**40):
        assert not holds(ids, absent)


@pytest.mark.parametrize("count", [1, 128, 129, MANY])
def test_the_first_id_beyond_a_vocabulary_is_told(count: int) -> None:
    ids = array("i", range(count))
    assert first_outside(ids, count) is None
    assert first_outside(ids, count - 1) == count - 1
    ids[0] = -1
    # A vocabulary that nobody knows the size of has no such id either.
    assert first_outside(ids, count) == first_outside(ids, sys.maxsize) == -1
    ids[0] = 2**31 - 1
    assert first_outside(ids, count) == 2**31 - 1
    assert first_outside(ids, sys.maxsize) is None


def test_no_ids_hold_nothing() -> None:
    assert not holds((), 0)
    assert first_outside((), 0) is None
