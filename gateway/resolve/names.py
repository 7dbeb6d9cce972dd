"""Session names that agents write into the messages themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.records import Message, plain_text

#: OpenClaw's line about its run time.
_TOLD = re.compile(r"^Runtime: .{0,400}?\| sessionId=([0-9A-Za-z-]{8,64})(?: |$)", re.MULTILINE)
#: No line is one without it: few messages are searched.
_NAMED = "| sessionId="
_SEARCHED_CHARACTERS = 20_000


def told_session(messages: Sequence[Message]) -> str | None:
    """The session that the first user message names, as OpenClaw's does."""
    for message in messages:
        if message["role"] == "user":
            text = plain_text(message)[:_SEARCHED_CHARACTERS]
            found = _TOLD.search(text) if _NAMED in text else None
            return found.group(1) if found else None
    return None
