"""What people, tools and models wrote, set apart as data in a prompt for a judge.

Each prompt has a mark of its own, drawn at random, so that no data can close its fence, and a
check word that a judge must give back: an answer that was copied out of the data does not have it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

#: What chat templates write between turns. A server tokenizes these as control tokens wherever
#: they stand, so a space is put into them; a reader still sees what was there.
_CONTROL = re.compile(
    r"<(?=[|\uff5c])"
    r"|(?<=[|\uff5c])(?=>)"
    r"|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|think|tool_call|tool_response)>)"
    r"|<(?=</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])"
    r"|\](?=~[a-z]\[?)"
)


@dataclass(frozen=True, slots=True)
class Fence:
    """`mark` is on the lines around each piece of data, `check` in a judge's answer."""

    mark: str
    check: str

    @classmethod
    def around(cls, texts: Iterable[str]) -> Fence:
        """A new fence, of which nothing stands in any of the texts."""
        whole = "\n".join(texts)
        while True:
            fence = cls(mark=secrets.token_hex(8), check=secrets.token_hex(4))
            if fence.mark not in whole and fence.check not in whole:
                return fence

    def wrap(self, label: str, text: str) -> str:
        """`text` between two marked lines; `label` must be the prompt's own word."""
        return f"[{self.mark} begin {label}]\n{plain(text)}\n[{self.mark} end {label}]"


def plain(text: str) -> str:
    """`text` without control tokens of chat templates."""
    return _CONTROL.sub(lambda match: f"{match[0]} ", text)


def clip(text: str, limit: int) -> str:
    """At most about `limit` characters, from both ends, with what is left out said."""
    if len(text) <= limit:
        return text
    head = (limit + 1) // 2
    tail = limit - head
    left_out = len(text) - limit
    return f"{text[:head]}\n[{left_out} characters left out]\n{text[len(text) - tail :]}"
