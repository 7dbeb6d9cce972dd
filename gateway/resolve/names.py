"""Session names that agents write into the messages themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.records import Message, plain_text

#: OpenClaw's line about its run time.
_TOLD = re.compile(r"^Runtime: .{0,400}?\| sessionId=([0-9A-Za-z-]{8,64})(?: |$)", re.MULTILINE)
_SEARCHED_CHARACTERS = 20_000


def told_session(messages: Sequence[Message]) -> str | None:
    """The session that the first user message names, as OpenClaw's does."""
    first = next((message for message in messages if message["role"] == "user"), None)
    if first is None:
        return None
    found = _TOLD.search(plain_text(first)[:_SEARCHED_CHARACTERS])
    return found.group(1) if found else None
