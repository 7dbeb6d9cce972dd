"""Replies that were told to end with their call, before the model would have ended them itself."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.tokens.tokenizer import Tokenizer

#: Enough ids to hold what ends a call, were each a character.
_TAIL_IDS = 48


def call_end(tokenizer: Tokenizer, sampled_ids: Sequence[int]) -> str | None:
    """What ends a call and was sampled last, None where a reply ends in another way.

    What the template writes behind it can be appended, exactly as if the model had gone on.
    """
    tail = tokenizer.decode(sampled_ids[-_TAIL_IDS:])
    return next((end for end in tokenizer.calls.one_call_stops if tail.endswith(end)), None)


def after_last(end: str, text: str) -> str | None:
    """What a text has behind the last `end`, None where it has none."""
    _, found, rest = text.rpartition(end)
    return rest if found else None
