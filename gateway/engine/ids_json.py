"""Token ids as JSON, which is all that SGLang takes: tens of thousands with each request.

Long lists are written in words of equal length. To take out the spaces that fill them would cost
as much as all the rest of it, and JSON allows them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Below this a list is written as fast.
_FEW = 512
#: Tables are made for ids of so many bits, at 8 bytes an id.
_BITS = (16, 18, 20)


def ids_json(ids: Sequence[int]) -> bytes:
    """`[1,2,3]`. Many packed ids of a vocabulary below 2^20 are looked up rather than written."""
    if len(ids) >= _FEW and isinstance(ids, array) and ids.typecode == "i":
        values = np.frombuffer(ids, dtype=np.int32)
        needed = int(values.max()).bit_length()
        bits = next((bits for bits in _BITS if needed <= bits), None)
        if bits is not None and values.min() >= 0:
            return b"[%b]" % _words(bits)[values].tobytes()[:-1]
    return msgspec.json.encode(list(ids))


@cache
def _words(bits: int) -> NDArray[np.bytes_]:
    """The decimal of every id, filled up with spaces, and a comma."""
    digits = len(str((1 << bits) - 1))
    return np.char.add(np.char.ljust(np.arange(1 << bits).astype(f"S{digits}"), digits), b",")
