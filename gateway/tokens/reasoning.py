"""How many of the sampled ids are reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gateway.tokens.formats.harmony import CALL, END, MESSAGE, is_reasoning
from gateway.tokens.reply_format import THINK, THINK_END, ReplyFormat
from gateway.tokens.tokenizer import Tokenizer


def reasoning_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], form: ReplyFormat, stop_token_ids: Iterable[int]
) -> int:
    """Ids [R] of a reply up to the end of its reasoning, the tags counted; 0 where it has none."""
    in_channels = form.calls is not None and form.calls.untooled is not None
    if not form.think and not in_channels:
        return 0
    stops = frozenset(stop_token_ids)
    end = next((index for index, id_ in enumerate(ids) if id_ in stops), len(ids))
    if in_channels:
        return _in_channels(tokenizer, list(ids[:end]))
    if not form.prefilled and not tokenizer.decode(ids[:end]).lstrip().startswith(THINK):
        return 0
    tag = tokenizer.id_of(THINK_END)
    low, high = 0, end
    if tag is not None and tag in ids[:end]:
        high = ids.index(tag) + 1
        low = high if THINK_END not in tokenizer.decode(ids[: high - 1]) else 0
    elif THINK_END not in tokenizer.decode(ids[:end]):
        return end
    # Spelled in several tokens: the fewest ids whose text holds the tag.
    while low < high:
        middle = (low + high) // 2
        if THINK_END in tokenizer.decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    return high


def _in_channels(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """The same of a reply in messages: those of reasoning, with the marks around them."""
    ends, opening = {tokenizer.id_of(END), tokenizer.id_of(CALL)}, tokenizer.id_of(MESSAGE)
    edges = [0, *(index for index, id_ in enumerate(ids, 1) if id_ in ends), len(ids)]
    messages = [ids[start:end] for start, end in pairwise(edges)]
    return sum(
        len(message)
        for message in messages
        if opening in message and is_reasoning(tokenizer.decode(message[: message.index(opening)]))
    )
