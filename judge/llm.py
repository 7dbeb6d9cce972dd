"""The LLM judge: one question, several votes, their majority."""

from __future__ import annotations

from gateway.records import Judgement
from judge import parse, prompts
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from judge.transcript import shown
from judge.verdicts import TRUNCATED, Evidence
from judge.votes import agreement, cast, majority

#: Rule names of turns that it could not score.
UNPARSED = "unparsed"
BUDGET_SPENT = "budget_spent"


class LlmJudge:
    """Scores what the rules left open. It never sees explicit feedback."""

    def __init__(self, endpoint: Endpoint, config: LlmConfig) -> None:
        self.name = f"llm:{endpoint.model}"
        self._endpoint = endpoint
        self._config = config

    async def judge(self, evidence: Evidence) -> Judgement | None:
        """None where nothing followed the reply. Raises JudgeError where it got no answer."""
        if not evidence.next_state:
            return None
        if self._endpoint.budget.spent:
            return self._unscored(BUDGET_SPENT, "the judge's budget for today is spent")
        config = self._config
        question = prompts.grade(
            shown(evidence, config),
            config.guidance,
        )
        votes = await cast(config.votes, lambda: self._endpoint.ask(question))
        values = [parse.score(v.answer.text, question.check) if v.answer else None for v in votes]
        raw = tuple(
            vote.record(kind="grade", score=value)
            for vote, value in zip(votes, values, strict=True)
        )
        score = majority(values)
        if score is None:
            return self._unscored(UNPARSED, "no vote could be read", raw)
        if score > 0 and not evidence.complete:
            reason = f"the reply is not complete ({evidence.finish_reason}); praise does not count"
            return self._unscored(TRUNCATED, reason, raw)
        counted = sum(value is not None for value in values)
        return Judgement(
            judge=self.name,
            score=float(score),
            confidence=agreement(values),
            reason=f"{values.count(score)} of {counted} votes",
            votes=raw,
        )

    def _unscored(
        self, rule: str, reason: str, votes: tuple[dict[str, object], ...] = ()
    ) -> Judgement:
        return Judgement(judge=self.name, score=None, rule=rule, reason=reason, votes=votes)
