"""How tokens are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; None is what the client left open.

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
        values = {
            name: getattr(defaults, name)
            for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens")
            if getattr(self, name) is None
        }
        return replace(self, **{**values, **(override or {})})

    def untrainable(self) -> str | None:
        """Why a policy gradient cannot use tokens sampled this way, or None.

        The trainer reproduces softmax(logits / temperature) and nothing else.
        """
        if self.temperature is not None and self.temperature <= 0:
            return "temperature_zero"
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
