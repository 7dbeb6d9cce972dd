"""Rules: free, deterministic, and first in line. Their order is their rank."""

from __future__ import annotations

from judge.rules.base import Rule
from judge.rules.feedback import FEEDBACK
from judge.rules.rephrase import REPHRASE
from judge.rules.replies import EMPTY_REPLY, REPEATED_REPLY
from judge.rules.rollback import ROLLED_BACK
from judge.rules.tools import TOOL_DECLINED, TOOL_ERROR, TOOL_SUCCESS
from judge.rules.words import CORRECTION, DENIAL, MOVES_ON, PRAISE, REDO, SOLICITED, THANKS

#: A user who blames outranks one who thanks in the same breath, and any word outranks a guess.
RULES = (
    FEEDBACK,
    EMPTY_REPLY,
    ROLLED_BACK,
    TOOL_DECLINED,
    TOOL_ERROR,
    CORRECTION,
    REDO,
    THANKS,
    PRAISE,
    DENIAL,
    REPEATED_REPLY,
    MOVES_ON,
    REPHRASE,
    SOLICITED,
    TOOL_SUCCESS,
)

__all__ = ["RULES", "Rule"]
