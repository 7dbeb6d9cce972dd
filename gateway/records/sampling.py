"""How tokens are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

#: Seeds are below this, as engines take them.
_SEEDS = 2**63


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Sampling parameters; None is what the client left open, and is left out where it is encoded.

    `logit_bias` maps token id to bias. `grammar` is a JSON schema or regular expression in the
    engine's own form.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    grammar: Mapping[str, Any] | None = None

    def filled(self, defaults: Sampling, override: Mapping[str, float] | None = None) -> Sampling:
        """What is sent to the engine: the client's values, the deployment's where left open.

        A key's `override` wins over both, so that captured traffic can be kept trainable.
        """
        values: dict[str, Any] = {}
        if self.temperature is None:
            values["temperature"] = defaults.temperature
        if self.top_p is None:
            values["top_p"] = defaults.top_p
        if self.top_k is None:
            values["top_k"] = defaults.top_k
        if self.min_p is None:
            values["min_p"] = defaults.min_p
        if self.max_tokens is None:
            values["max_tokens"] = defaults.max_tokens
        if override:
            values.update(override)
        return replace(self, **values)

    def of_choice(self, index: int) -> Sampling:
        """A seed makes choices repeatable, not equal: each counts on from it."""
        if self.seed is None or not index:
            return self
        return replace(self, seed=(self.seed + index) % _SEEDS)

    @property
    def cut_to(self) -> int | None:
        """How many ids each token may be of, where that alone keeps it from being trained on.

        None where it is not, where sampling was cut without a bound (top-p alone), and where
        nothing is left to choose.
        """
        bound = self.top_k or 0
        if bound <= 1:
            return None
        cut = self.untrainable() is not None and self.untrainable(kept=True) is None
        return bound if cut else None

    def cut_within(self, most: int) -> bool:
        """Whether an engine that tells up to `most` ids tells those of which each token is."""
        return 0 < (self.cut_to or 0) <= most

    def untrainable(self, *, kept: bool = False) -> str | None:
        """Why a policy gradient cannot use tokens sampled this way, or None.

        The trainer reproduces softmax(logits / temperature), over all ids or over those that
        sampling was cut to, where these are `kept`; and nothing else.
        """
        if self.temperature is not None and self.temperature <= 0:
            return "temperature_zero"
        if not kept:
            if self.top_p is not None and self.top_p < 1:
                return "top_p_truncated"
            if self.top_k is not None and self.top_k > 0:
                return "top_k_truncated"
            if self.min_p:
                return "min_p_truncated"
        if self.frequency_penalty or self.presence_penalty:
            return "penalty"
        if self.repetition_penalty not in (None, 1, 1.0):
            return "penalty"
        if self.logit_bias:
            return "logit_bias"
        return "grammar" if self.grammar else None
