"""How a policy behaves where no score looks: replies that grow, beg, or stop using tools (pure).

A reward that can be had by one of these is found by training sooner or later. Each batch is
compared with what was usual in the batches before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from gateway.records import TrainingSample
from gateway.records.message import plain_text
from trainer.config import AlarmSettings
from trainer.credit import Running

LENGTH, SOLICITATION, TOOL_CALLS = "reply_tokens", "solicitation_rate", "tool_call_rate"


def behaviour(samples: Sequence[TrainingSample], settings: AlarmSettings) -> dict[str, float]:
    """Mean sampled tokens, and the shares of replies that solicit praise and that call tools.

    The shares are of the replies whose text is known; nothing is said of them where none is.
    """
    found = {LENGTH: fmean(len(sample.sampled_ids) for sample in samples)}
    replies = [sample.reply for sample in samples if sample.reply is not None]
    if replies:
        begs = re.compile("|".join(settings.solicits), re.IGNORECASE) if settings.solicits else None
        begging = [
            begs is not None and begs.search(plain_text(reply)) is not None for reply in replies
        ]
        found[SOLICITATION] = fmean(begging)
        found[TOOL_CALLS] = fmean(bool(reply.get("tool_calls")) for reply in replies)
    return found


@dataclass(frozen=True, slots=True)
class Watch:
    """What was usual in earlier batches; part of every checkpoint."""

    usual: Mapping[str, Running] = field(default_factory=dict)

    def alarms(self, found: Mapping[str, float], settings: AlarmSettings) -> list[str]:
        """Which of `found` are out of the usual, once enough batches have been seen."""
        raised = []
        for name, value in found.items():
            usual = self.usual.get(name, Running())
            begs = name == SOLICITATION and value > settings.max_solicitation
            known = usual.count >= settings.after
            if begs or (known and _unusual(name, value, usual.mean, settings)):
                raised.append(name)
        return raised

    def after(self, found: Mapping[str, float], settings: AlarmSettings) -> Watch:
        """The watch once a batch has been seen."""
        usual = dict(self.usual)
        for name, value in found.items():
            usual[name] = usual.get(name, Running()).plus(value, settings.horizon)
        return Watch(usual)

    def dump(self) -> dict[str, Any]:
        return {name: [mean.mean, mean.count] for name, mean in self.usual.items()}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Watch:
        return cls({name: Running(float(m), int(n)) for name, (m, n) in state.items()})


def _unusual(name: str, value: float, usual: float, settings: AlarmSettings) -> bool:
    if name == LENGTH:
        factor = settings.length_factor
        return value > factor * usual or value * factor < usual
    return abs(value - usual) > settings.rate_change
