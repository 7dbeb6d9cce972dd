"""Explicit feedback: somebody scored this very turn."""

from __future__ import annotations

from judge.rules.base import Rule
from judge.verdicts import Evidence, Finding

HINT_LIMIT = 400


def _look(evidence: Evidence) -> Finding | None:
    """The latest word of each source counts; sources are averaged.

    What was said of this very turn stands above its share of what was said of the session.
    """
    own = [record for record in evidence.feedback if record.session_id is None]
    said = sorted(own or evidence.feedback, key=lambda record: record.id)
    latest = {record.source: record for record in said}
    if not latest:
        return None
    score = sum(record.score for record in latest.values()) / len(latest)
    words = [r.text.strip() for r in latest.values() if r.score < 0 and r.text.strip()]
    return Finding(
        score=max(-1.0, min(1.0, score)),
        reason=f"feedback from {', '.join(sorted(latest))}"[:200],
        hint=words[-1][:HINT_LIMIT] if words and score < 0 else None,
        explicit=True,
    )


FEEDBACK = Rule("feedback", 1.0, _look)
