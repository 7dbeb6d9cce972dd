"""What a judgement took: answers, tokens, their price, and the time waited for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.records import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD for a million tokens."""

    prompt_usd: float = 0.0
    completion_usd: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """USD."""
        return (prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd) / 1e6


def usage_of(judgement: Judgement, price: Price | None = None) -> dict[str, Any]:
    """`{"calls", "prompt_tokens", "completion_tokens", "usd", "ms"}` of the votes.

    What is known of other parts stays. `ms` is the slowest answer of each question, since the
    votes on it are asked at once. Empty where nobody was asked.
    """
    answered = [vote for vote in judgement.votes if "error" not in vote]
    known = dict(judgement.usage or {})
    if not judgement.votes:
        return known
    prompt = sum(int(vote.get("prompt_tokens", 0)) for vote in answered)
    completion = sum(int(vote.get("completion_tokens", 0)) for vote in answered)
    slowest: dict[object, float] = {}
    for vote in answered:
        kind = vote.get("kind")
        slowest[kind] = max(slowest.get(kind, 0.0), float(vote.get("ms", 0.0)))
    return {
        **known,
        "calls": len(judgement.votes),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "usd": round((price or Price()).of(prompt, completion), 8),
        "ms": round(sum(slowest.values()), 1),
    }
