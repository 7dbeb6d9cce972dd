"""On-policy distillation and its combination with scores, as advantages of tokens (pure).

The teacher is the reference policy that was told the hint; both sides at temperature 1, since
engines score ids at that temperature whatever they sampled at.
"""

from __future__ import annotations

from collections.abc import Sequence


def opd(
    teacher: Sequence[float] | None, student: Sequence[float], clip: float = 2.0
) -> list[float]:
    """A_t = teacher_t - student_t [R], each within ±clip; 0 for every token without a hint.

    Log-probabilities of the sampled tokens: `teacher` [R] under the hinted prompt or None,
    `student` [R] by the proximal policy. Raises ValueError where their lengths differ.
    """
    if teacher is None:
        return [0.0] * len(student)
    return [max(-clip, min(clip, told - said)) for told, said in zip(teacher, student, strict=True)]


def combined(
    score: float, distilled: Sequence[float], *, w_rl: float = 1.0, w_opd: float = 1.0
) -> list[float]:
    """A_t = w_rl A_rl + w_opd A_opd,t [R] from those of a sample and of its tokens."""
    return [w_rl * score + w_opd * gain for gain in distilled]
