"""Replies that are bad in themselves: empty, looping, or said before."""

from __future__ import annotations

import re

from gateway.records import FinishReason
from judge.rules.base import Rule
from judge.verdicts import Evidence, Finding, content_text, edges

_LOOP_UNITS = 4
_UNIT = re.compile(r"[^.!?\u3002\uff01\uff1f\n]+[.!?\u3002\uff01\uff1f\n]*")
_LETTERS = re.compile(r"[^\W\d_]{2}")


def _empty(evidence: Evidence) -> Finding | None:
    if evidence.reply_text.strip() or evidence.tool_calls:
        return None
    if evidence.finish_reason is FinishReason.ABORT:
        return None  # Cut off from outside before it could say anything.
    return Finding(score=-1.0, reason="the reply is empty")


def _repeated(evidence: Evidence) -> Finding | None:
    text = evidence.reply_text.strip()
    if evidence.tool_calls or len(text) < 20:
        return None
    if any(
        content_text(message.get("content")).strip() == text
        for message in evidence.request
        if message.get("role") == "assistant"
    ):
        return Finding(score=-1.0, reason="the reply repeats an earlier one word for word")
    if _loops(edges(text)):
        return Finding(score=-1.0, reason="the reply says the same thing over and over")
    return None


def _loops(text: str) -> bool:
    """Whether the same sentence or line ends the text at least four times in a row.

    Units without two letters together (table rules, closing braces) say nothing.
    """
    units = [" ".join(unit.split()).casefold() for unit in _UNIT.findall(text)]
    units = [unit for unit in units if _LETTERS.search(unit)]
    for period in (1, 2, 3):
        if len(units) < period * _LOOP_UNITS + 1:
            continue
        # The last unit may be cut in the middle.
        tail = units[-period * _LOOP_UNITS - 1 : -1]
        unit = tail[-period:]
        if sum(map(len, unit)) >= 12 and tail == unit * _LOOP_UNITS:
            return True
    return len(units) == _LOOP_UNITS and len(set(units)) == 1 and len(units[0]) >= 12


EMPTY_REPLY = Rule("empty_reply", 0.95, _empty)
REPEATED_REPLY = Rule("repeated_reply", 0.8, _repeated)
