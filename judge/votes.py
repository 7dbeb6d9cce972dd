"""Several answers to one question, and what they amount to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import JudgeError, JudgeUnavailable
from judge.answer import Answer

RAW_LIMIT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One answer, or the error in its place; it counts where it could be parsed."""

    answer: Answer | None = None
    error: str | None = None

    def record(self, **parsed: Any) -> dict[str, Any]:
        """What is stored of it: what was parsed, and what was said."""
        if self.answer is None:
            return {**parsed, "error": self.error}
        return {
            **parsed,
            "raw": self.answer.text[:RAW_LIMIT],
            "prompt_tokens": self.answer.prompt_tokens,
            "completion_tokens": self.answer.completion_tokens,
            "ms": round(self.answer.ms, 1),
        }


async def cast(count: int, ask: Callable[[], Awaitable[Answer]]) -> tuple[Vote, ...]:
    """Ask `count` times at once.

    Raises what the last one raised where none was answered: JudgeUnavailable before JudgeError,
    since a judge that could not be reached has said nothing yet.
    """
    results = await asyncio.gather(*(ask() for _ in range(count)), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if unexpected := [error for error in errors if not isinstance(error, JudgeError)]:
        raise unexpected[0]
    if len(errors) == len(results):
        raise next((e for e in errors if isinstance(e, JudgeUnavailable)), errors[-1])
    return tuple(
        Vote(error=str(result)) if isinstance(result, BaseException) else Vote(answer=result)
        for result in results
    )


def majority(values: Sequence[int | None]) -> int | None:
    """The most frequent value; 0 where several are. Unparsed votes (None) do not count.

    None where no vote is left: nothing is known, which is not the same as 0.
    """
    counts = Counter(value for value in values if value is not None)
    if not counts:
        return None
    (top, most), *others = counts.most_common()
    return 0 if others and others[0][1] == most else top


def agreement(values: Sequence[int | None]) -> float | None:
    """Share of the parsed votes that are the most frequent one, in (0, 1]; None without votes."""
    counts = Counter(value for value in values if value is not None)
    return counts.most_common(1)[0][1] / counts.total() if counts else None
