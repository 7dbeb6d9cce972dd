"""From evidence to a judgement: judges in line, the rules first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.errors import ConfigError
from gateway.records import Judgement
from judge.config import JudgeConfig
from judge.rules import RULES, Rule
from judge.verdicts import TRUNCATED, Evidence, Finding, Judge


@dataclass(frozen=True, slots=True)
class RuleJudge:
    """The first rule in rank that may settle the score does so."""

    rules: tuple[Rule, ...] = RULES
    min_confidence: float = 0.0
    name: str = "rules"

    @classmethod
    def configured(cls, config: JudgeConfig, rules: Iterable[Rule] = RULES) -> RuleJudge:
        """Raises ConfigError where the settings name a rule that does not exist."""
        rules = tuple(rules)
        known = {rule.name for rule in rules}
        named = {*(config.settling_rules or ()), *config.rule_weights}
        if unknown := sorted(named - known):
            raise ConfigError(
                f"judge: no rule named {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        settling = known if config.settling_rules is None else set(config.settling_rules)
        weighed = (
            Rule(rule.name, config.rule_weights.get(rule.name, rule.confidence), rule.look)
            for rule in rules
            if rule.name in settling
        )
        kept = tuple(rule for rule in weighed if rule.confidence > 0)
        return cls(rules=kept, min_confidence=config.min_confidence)

    def only(self, name: str) -> RuleJudge | None:
        """With the rule of this name alone; None where it may not settle anything."""
        kept = tuple(rule for rule in self.rules if rule.name == name)
        return replace(self, rules=kept) if kept else None

    async def judge(self, evidence: Evidence) -> Judgement | None:
        for rule in self.rules:
            if rule.confidence < self.min_confidence:
                continue
            if finding := rule.judge(evidence):
                return self._judgement(rule, finding, evidence)
        return None

    def _judgement(self, rule: Rule, finding: Finding, evidence: Evidence) -> Judgement:
        # A reply cut by its length limit or by its client was not what pleased anybody; only
        # somebody's direct word about the turn may still say so.
        if finding.score > 0 and not evidence.complete and not finding.explicit:
            return Judgement(
                judge=self.name,
                score=None,
                rule=TRUNCATED,
                reason=f"the reply is not complete ({evidence.finish_reason}); "
                f"{rule.name} does not count",
            )
        return Judgement(
            judge=self.name,
            score=finding.score,
            rule=rule.name,
            confidence=rule.confidence,
            reason=finding.reason,
            hint=finding.hint,
        )


async def evaluate(judges: Sequence[Judge], evidence: Evidence) -> Judgement:
    """The judgement of the first judge that has one.

    A turn that none of them can say anything about has no score: it is not a bad turn.
    """
    for judge in judges:
        if (judgement := await judge.judge(evidence)) is not None:
            return judgement
    if not evidence.complete:
        reason = f"the reply is not complete ({evidence.finish_reason})"
        return Judgement(judge="none", score=None, rule=TRUNCATED, reason=reason)
    return Judgement(judge="none", score=None, reason="no rule applies")
