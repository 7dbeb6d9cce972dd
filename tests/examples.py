"""How many examples a property is tried on: a few in a test, many times as many in a proof."""

from __future__ import annotations

from hypothesis import settings

#: What a profile tries where a property names no number of its own.
_USUAL = 100


def examples(count: int) -> settings:
    """Try `count` examples, or more in the proportion in which the profile asks for more."""
    return settings(max_examples=count * settings.default.max_examples // _USUAL, deadline=None)
