"""A rule: one small, deterministic look at the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from judge.verdicts import Evidence, Finding


@dataclass(frozen=True, slots=True)
class Rule:
    """`look` gives a finding, or None where the rule has nothing to say.

    `confidence` in [0, 1] is how often the finding should be right.
    """

    name: str
    confidence: float
    look: Callable[[Evidence], Finding | None]

    def judge(self, evidence: Evidence) -> Finding | None:
        return self.look(evidence)
