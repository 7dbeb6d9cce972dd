"""What an engine is asked for and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine is asked to sample. `input_ids` [P] are validated against the vocabulary.

    `top_logprobs` is how many of the likeliest tokens each sampled one is to come with.
    """

    rid: str
    input_ids: Sequence[int]
    sampling: Sampling
    policy: PolicyRef
    stop_token_ids: tuple[int, ...] = ()
    session_key: str = ""
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a generation ended.

    `matched` is the stop token id or stop string that ended it. `spans` cover every sampled token.
    `usage` is given where no ids are, and they cannot be counted.
    """

    reason: FinishReason
    matched: int | str | None = None
    spans: tuple[VersionSpan, ...] = ()
    cached_tokens: int = 0
    usage: Usage | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens newly sampled: `ids` [n] and their `logprobs` [n]; the last one carries `finish`.

    `top` [n] are the likeliest tokens at each place, if they were asked for.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[Ranked, ...] = ()
    finish: Finish | None = None
