"""Token ids as a request carries them: packed, so that tens of thousands cost next to nothing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

#: Ids are 32 bits wide, as engines and the store have them.
_TYPE = "i"
#: So many are looked through as fast one by one.
_FEW = 128


def packed_ids(ids: Sequence[int]) -> array[int]:
    """[n]. Raises OverflowError for an id that 32 bits do not hold."""
    return ids if isinstance(ids, array) and ids.typecode == _TYPE else array(_TYPE, ids)


def holds(ids: Sequence[int], wanted: int) -> bool:
    """Whether `wanted` is one of `ids`."""
    if len(ids) > _FEW and isinstance(ids, array) and ids.typecode == _TYPE:
        return bool((np.frombuffer(ids, dtype=np.int32) == wanted).any())
    return wanted in ids


def first_outside(ids: Sequence[int], size: int) -> int | None:
    """The first of `ids` that a vocabulary of `size` does not have, or None."""
    if not ids:
        return None
    if len(ids) > _FEW and isinstance(ids, array) and ids.typecode == _TYPE:
        # Read as unsigned, those below 0 are the largest.
        inside = int(np.frombuffer(ids, dtype=np.uint32).max()) < min(size, 1 << 31)
    else:
        inside = min(ids) >= 0 and max(ids) < size
    if inside:
        return None
    return next(id_ for id_ in ids if not 0 <= id_ < size)
