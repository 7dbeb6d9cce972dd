"""Sampling parameters as the older OpenAI protocols name them, and their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.records import Sampling
from gateway.wire.json_body import invalid

N = TypeVar("N", int, float, int | None, float | None)

_MOST_STOPS = 4
_STOP_CHARACTERS = 1_000
_MOST_STOP_IDS = 256
LARGEST_INT = 2**63 - 1


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields of a body; None is what the client left open."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Not of the original: other servers take them, and clients made for those send them."""
        if self.stop_token_ids and len(self.stop_token_ids) > _MOST_STOP_IDS:
            raise invalid("stop_token_ids", f"at most {_MOST_STOP_IDS} ids are allowed")
        return tuple(self.stop_token_ids or ())

    def sampling(
        self, limit: int | None, named: str, grammar: Mapping[str, Any] | None = None
    ) -> Sampling:
        """The parameters, checked. `limit` bounds the reply; the field that says so is `named`.

        Raises InvalidRequest.
        """
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty <= 2:
            raise invalid("repetition_penalty", "expected a number above 0 and at most 2")
        # What is left open, as nearly all are, needs no look; nor does 0, which these all allow.
        top_k = self.top_k and between("top_k", self.top_k, -1, LARGEST_INT)
        return Sampling(
            temperature=self.temperature and between("temperature", self.temperature, 0, 2),
            top_p=None if self.top_p is None else nucleus(self.top_p),
            top_k=top_k if top_k and top_k > 0 else None,
            min_p=self.min_p and between("min_p", self.min_p, 0, 1),
            frequency_penalty=self.frequency_penalty
            and between("frequency_penalty", self.frequency_penalty, -2, 2),
            presence_penalty=self.presence_penalty
            and between("presence_penalty", self.presence_penalty, -2, 2),
            repetition_penalty=self.repetition_penalty,
            logit_bias=_logit_bias(self.logit_bias) if self.logit_bias else None,
            seed=self.seed and between("seed", self.seed, -LARGEST_INT - 1, LARGEST_INT),
            stop=() if self.stop is None else _stop(self.stop),
            max_tokens=None if limit is None else reply_limit(named, limit),
            grammar=grammar,
        )


def between(param: str, value: N, low: int, high: int) -> N:
    """`value` if it is in range or was left open. JSON has no NaN, so a range is enough."""
    if value is not None and not low <= value <= high:
        bounds = f"at least {low}" if high == LARGEST_INT else f"from {low} to {high}"
        raise invalid(param, f"expected a number {bounds}")
    return value


def reply_limit(param: str, value: int | None) -> int | None:
    return between(param, value, 1, LARGEST_INT)


def nucleus(top_p: float | None) -> float | None:
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid("top_p", "expected a number above 0 and at most 1")
    return top_p


def _stop(stop: str | list[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > _MOST_STOPS:
        raise invalid("stop", f"at most {_MOST_STOPS} sequences are allowed")
    if any(not 1 <= len(text) <= _STOP_CHARACTERS for text in stops):
        raise invalid("stop", f"each sequence has 1 to {_STOP_CHARACTERS} characters")
    return stops


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    wrong = next((key for key in bias if not (key.isdecimal() and len(key) <= 9)), None)
    if wrong is not None:
        raise invalid("logit_bias", "keys are token ids")
    if not all(math.isfinite(value) and -100 <= value <= 100 for value in bias.values()):
        raise invalid("logit_bias", "values are numbers from -100 to 100")
    return {int(key): value for key, value in bias.items()}
