"""A judge of one's own: the reply must be a JSON object with certain keys.

    pip install ./examples/judge_plugin

and in nextstate.yaml, here after the rules, so that it decides what they leave open:

    judge:
      line: [rules, json]
      plugins:
        json: {keys: [city, country]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.records import Judgement
from judge.verdicts import Evidence


class JsonJudge:
    """Says 1 or -1 of replies in text; tool calls are left to the next judge in line."""

    name = "json"

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    async def judge(self, evidence: Evidence) -> Judgement | None:
        if evidence.tool_calls or not evidence.complete:
            return None
        try:
            found = json.loads(evidence.reply_text)
        except ValueError:
            return self._bad("the reply is no JSON", "Answer with one JSON object and no prose.")
        missing = [key for key in self._keys if not isinstance(found, dict) or key not in found]
        if missing:
            return self._bad(f"{missing[0]} is missing", f"Give the key {missing[0]}.")
        return Judgement(judge=self.name, score=1.0, reason="JSON with every key")

    def _bad(self, reason: str, hint: str) -> Judgement:
        return Judgement(judge=self.name, score=-1.0, reason=reason, hint=hint)


def make(settings: Mapping[str, Any]) -> JsonJudge:
    """What the entry point names: settings in, a judge out."""
    keys = settings.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("keys must be a list of names")
    return JsonJudge(tuple(keys))
