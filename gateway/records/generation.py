"""What an engine is asked for and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from gateway.records.policy import PolicyRef, VersionSpan
from gateway.records.reply import Usage
from gateway.records.sampling import Sampling

#: The likeliest tokens at one place as (token id, log-probability), the likeliest first.
Ranked = tuple[tuple[int, float], ...]


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"


class Generation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an engine is asked to sample. `input_ids` [P] are validated against the vocabulary.

    `top_logprobs` is how many of the likeliest tokens each sampled one is to come with; with `kept`
    it comes with the ids that it was sampled from, too, of an engine that can tell them. `images`
    and `audio` are data URLs or http(s) addresses, in the order of their marks in the ids.
    `traceparent` is the W3C header that names the span which the engine's own stand under. Behind
    the first token come `stream_interval` at a time, where nobody watches each of them.
    """

    rid: str
    input_ids: Sequence[int]
    sampling: Sampling
    policy: PolicyRef
    stop_token_ids: tuple[int, ...] = ()
    session_key: str = ""
    top_logprobs: int = 0
    kept: bool = False
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    traceparent: str | None = None
    stream_interval: int = 1


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a generation ended.

    `matched` is the stop token id or stop string that ended it. `spans` cover every sampled token.
    `usage` is given where no ids are, and they cannot be counted. `prompt_tokens` are those that
    the engine saw, which are more than were sent where it put images or audio among them.
    """

    reason: FinishReason
    matched: int | str | None = None
    spans: tuple[VersionSpan, ...] = ()
    cached_tokens: int = 0
    usage: Usage | None = None
    prompt_tokens: int | None = None
    detail: str | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens newly sampled: `ids` [n] and their `logprobs` [n]; the last one carries `finish`.

    `top` [n] are the likeliest tokens at each place, if they were asked for; `kept` [n, any] are
    the ids that each was sampled from, where an engine told them: `logprobs` are then among them.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[Ranked, ...] = ()
    kept: tuple[Sequence[int], ...] = ()
    finish: Finish | None = None
