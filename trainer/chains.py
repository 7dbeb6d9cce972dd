"""Turns of one conversation that fit into one sequence (pure).

A causal model computes the same numbers for a prefix whatever follows it. So where all ids of a
turn, prompt and reply, are the beginning of a later turn's prompt, both are trained from the
later one's forward pass.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from gateway.records import TrainingSample

_WIDTH = array("i").itemsize


def chains(samples: Sequence[TrainingSample]) -> list[tuple[int, ...]]:
    """Indices of samples by sequence: in each, every turn's ids begin the next one's prompt.

    Every sample is in one sequence. Of several that continue the same turn, one joins it.
    """
    found: list[list[int]] = []
    #: Sequences of a session that may go on, by all their ids.
    ends: defaultdict[UUID, dict[bytes, list[int]]] = defaultdict(dict)
    for index in sorted(range(len(samples)), key=lambda i: (len(samples[i].prompt_ids), i)):
        sample = samples[index]
        prompt = array("i", sample.prompt_ids).tobytes()
        open_ends = ends[sample.session_id]
        chain = _continued(open_ends, prompt)
        if chain is None:
            chain = []
            found.append(chain)
        chain.append(index)
        # A twin with the very same ids stays a sequence of its own; either may be continued.
        open_ends[prompt + array("i", sample.sampled_ids).tobytes()] = chain
    return [tuple(chain) for chain in found]


def _continued(ends: dict[bytes, list[int]], prompt: bytes) -> list[int] | None:
    """The longest sequence that `prompt` begins with, taken out of `ends`."""
    for length in sorted({len(end) for end in ends}, reverse=True):
        if length <= len(prompt) and (chain := ends.pop(prompt[:length], None)) is not None:
            return chain
    return None
