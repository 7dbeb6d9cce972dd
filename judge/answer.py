"""One answer of an endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`ms` from the question to the answer; no tokens where the endpoint does not count them."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    ms: float
