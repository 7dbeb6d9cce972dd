"""Log-probabilities as clients are shown them, where they ask."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.records import Ranked
from gateway.tokens.tokenizer import Tokenizer
from gateway.wire.base import TokenLogprob


def spoken(tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int]:
    """Without the token that only ends a reply: a stream ends with the text."""
    ends = ids and ids[-1] in tokenizer.facts.stop_token_ids
    return ids[:-1] if ends else ids


def shown(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    logprobs: Sequence[float],
    top: Sequence[Ranked],
) -> list[TokenLogprob]:
    """Tokens [n] with their values, and the likeliest in each place where they are there."""
    # An engine that loses one is found out at the end; until then what there is is shown.
    places = top or ((),) * len(ids)
    return [
        _token(tokenizer, id_, value, tuple(_token(tokenizer, *other) for other in others))
        for id_, value, others in zip(ids, logprobs, places, strict=False)
    ]


def _token(
    tokenizer: Tokenizer, id_: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
) -> TokenLogprob:
    return TokenLogprob(
        text=tokenizer.decode([id_]), raw=tokenizer.bytes_of(id_), logprob=logprob, top=top
    )
