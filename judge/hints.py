"""Hints: what the assistant should have known, in one to three sentences.

A user's own correction, which the rules take from what he wrote, is the hint where there is one.
Otherwise the judge's endpoint is asked whether what came next would have improved the reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.errors import JudgeError
from gateway.records import Judgement
from gateway.telemetry import get_logger
from judge import parse, prompts
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from judge.fences import plain
from judge.parse import HintAnswer
from judge.transcript import shown
from judge.verdicts import Evidence
from judge.votes import cast

log = get_logger(__name__)

Agreement = Literal["any", "majority"]

#: Shorter hints say nothing that could be acted on.
TRIVIAL_CHARS = 10
SENTENCES = 3
HINT_LIMIT = 600

_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[\u3002\uff01\uff1f]")


def agreed(answers: Sequence[HintAnswer | None], agreement: Agreement) -> str | None:
    """The longest non-trivial hint, where enough of the parsed votes want one.

    `any`: one vote is enough; `majority`: more than half of the parsed ones.
    """
    parsed = [answer for answer in answers if answer is not None]
    wanted = [answer for answer in parsed if answer.improves]
    if not wanted or (agreement == "majority" and 2 * len(wanted) <= len(parsed)):
        return None
    hints = [trimmed(answer.hint) for answer in wanted]
    return max((hint for hint in hints if len(hint) > TRIVIAL_CHARS), key=len, default=None)


def trimmed(hint: str) -> str:
    """One line of at most three sentences, without control tokens."""
    line = " ".join(plain(hint).split())
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    if len(ends) > SENTENCES:
        line = line[: ends[SENTENCES - 1]]
    return line[:HINT_LIMIT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinter:
    """Asks an endpoint for hints."""

    endpoint: Endpoint
    config: LlmConfig
    agreement: Agreement

    async def hint(self, evidence: Evidence) -> tuple[str | None, tuple[dict[str, object], ...]]:
        """The hint, None where there is none, and the raw votes. Raises JudgeError."""
        config = self.config
        question = prompts.hint(
            shown(evidence, config),
            config.guidance,
        )
        votes = await cast(config.votes, lambda: self.endpoint.ask(question))
        answers = [parse.hint(v.answer.text, question.check) if v.answer else None for v in votes]
        raw = tuple(
            vote.record(kind="hint", improves=answer.improves if answer else None)
            for vote, answer in zip(votes, answers, strict=True)
        )
        return agreed(answers, self.agreement), raw

    async def advised(self, evidence: Evidence, judgement: Judgement) -> Judgement:
        """The judgement with a hint, where it has none and the reply did not please.

        A score in hand is worth more than a hint: without an answer it stays as it is.
        """
        pleased = judgement.score is not None and judgement.score > 0
        if judgement.hint is not None or pleased or not evidence.next_state:
            return judgement
        if self.endpoint.budget.spent:
            return judgement
        try:
            hint, votes = await self.hint(evidence)
        except JudgeError as error:
            log.warning("no_hint", error=type(error).__name__)
            return judgement
        return replace(judgement, hint=hint, votes=(*judgement.votes, *votes))
