"""How a reply is sampled: what the client asks for, within what the model and context allow."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.config import SamplingDefaults
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.pipeline.turn import Call
from gateway.records import Sampling, TurnKind, first_outside
from gateway.tokens.tokenizer import Tokenizer

#: SGLang refuses prompts that leave fewer ids than this in the context.
ENGINE_RESERVE = 6


def bounded(
    call: Call,
    prompt_ids: Sequence[int],
    tokenizer: Tokenizer,
    *,
    limit: int,
    defaults: SamplingDefaults,
) -> Sampling:
    """Sampling as sent: defaults filled in, the reply bounded by what the context leaves.

    `limit` is the context's length in ids. How many ids images and audio take in it the engine
    alone knows: with them the end is left to it where the client leaves it open. Raises
    InvalidRequest, of which ContextTooLong is one.
    """
    request, facts = call.request, tokenizer.facts
    if (wrong := first_outside(prompt_ids, facts.vocab_size)) is not None:
        raise InvalidRequest(f"token id {wrong} is outside the model's vocabulary")
    left = limit - len(prompt_ids)
    asked = request.sampling.max_tokens
    if request.shorten and asked is not None:
        asked = None if call.media and asked >= left else min(asked, max(left, 1))
    if left <= ENGINE_RESERVE or (asked is not None and asked > left):
        raise ContextTooLong(limit=limit, prompt_tokens=len(prompt_ids), reply_tokens=asked or 1)
    for token in request.sampling.logit_bias or ():
        if not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                f"logit_bias: there is no token {token}",
                param="logit_bias",
                code="invalid_value",
            )
    for token in request.stop_token_ids:
        if not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                f"stop_token_ids: there is no token {token}",
                param="stop_token_ids",
                code="invalid_value",
            )
        if token not in facts.stop_token_ids:
            raise InvalidRequest(
                "Only the model's own stop tokens are supported; use 'stop'.",
                param="stop_token_ids",
                code="unsupported_parameter",
            )
    sampling = request.sampling
    if asked != sampling.max_tokens:
        sampling = replace(sampling, max_tokens=asked)
    return sampling.filled(
        Sampling(
            temperature=defaults.temperature,
            top_p=defaults.top_p,
            max_tokens=defaults.max_tokens
            if call.media
            else min(defaults.max_tokens or left, left),
        ),
        None if call.place.kind.kind is TurnKind.SIDE else call.principal.sampling,
    )
