"""How many of the sampled ids are reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gateway.tokens.formats import ChannelFormat
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.tokenizer import Tokenizer

#: Ids within which a message has said what it is, spelled letter by letter if need be.
_HEAD_IDS = 48


def reasoning_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], form: ReplyFormat, stop_token_ids: Iterable[int]
) -> int:
    """Ids [R] of a reply up to the end of its reasoning, the tags counted; 0 where it has none."""
    channels = form.calls.untooled if form.calls else None
    if not form.think and channels is None:
        return 0
    stops = frozenset(stop_token_ids)
    end = next((index for index, id_ in enumerate(ids) if id_ in stops), len(ids))
    if channels is not None:
        return _in_channels(tokenizer, list(ids[:end]), channels)
    opening, closing = form.thought.open, form.thought.close
    if not form.prefilled and not tokenizer.decode(ids[:end]).lstrip().startswith(opening):
        return 0
    tag = tokenizer.id_of(closing)
    low, high = 0, end
    if tag is not None and tag in ids[:end]:
        high = ids.index(tag) + 1
        low = high if closing not in tokenizer.decode(ids[: high - 1]) else 0
    elif closing not in tokenizer.decode(ids[:end]):
        return end
    # Spelled in several tokens: the fewest ids whose text holds the tag.
    while low < high:
        middle = (low + high) // 2
        if closing in tokenizer.decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    return high


def _in_channels(tokenizer: Tokenizer, ids: Sequence[int], form: ChannelFormat) -> int:
    """The same of a reply in messages: those of reasoning, with the marks around them."""
    ends = {tokenizer.id_of(end) for end in form.ends}
    edges = [0, *(index for index, id_ in enumerate(ids, 1) if id_ in ends), len(ids)]
    messages = [ids[start:end] for start, end in pairwise(edges)]
    return sum(
        len(message)
        for message in messages
        if form.is_reasoning(tokenizer.decode(message[:_HEAD_IDS]))
    )
