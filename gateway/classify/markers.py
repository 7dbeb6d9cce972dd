"""What known agents reveal of calls beside their main line: sub-agents and housekeeping.

Headers are read at the edge (`TurnRequest.marker`). Phrases are those of the agents' own prompts,
looked for where the agent puts them, and nowhere else: a user may say the same words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.records import TurnRequest, plain_text

SUBAGENT = "subagent"
COMPACTION = "compaction"
TITLE = "title"
COMMIT_MESSAGE = "commit_message"

_SEARCHED_CHARACTERS = 20_000
_SYSTEM = ("system", "developer")

#: Agents whose main line never comes without tools, by the start of their User-Agent.
_WITH_TOOLS = ("claude-cli/", "opencode/", "QwenCode/", "codex")


@dataclass(frozen=True, slots=True)
class _Phrase:
    """`where` is `system` (the first system message's start) or `last` (what was said last)."""

    marker: str
    where: str
    expression: re.Pattern[str]


def _phrase(marker: str, where: str, text: str) -> _Phrase:
    return _Phrase(marker, where, re.compile(text))


_PHRASES = (
    _phrase(SUBAGENT, "system", r"\bcc_is_subagent=true\b"),
    _phrase(TITLE, "system", r"\AYou are a title generator\b"),
    _phrase(TITLE, "system", r"\bGenerate a (?:concise|short), sentence-case title\b"),
    _phrase(COMPACTION, "system", r"\AYou are the component that summarizes internal chat history"),
    _phrase(COMPACTION, "system", r"\AYou are a (?:context )?summarization assistant\b"),
    _phrase(COMPACTION, "last", r"\bYour task is to create a detailed summary of the conversation"),
    _phrase(COMPACTION, "last", r"\bYou are performing a CONTEXT CHECKPOINT COMPACTION\b"),
    _phrase(COMPACTION, "last", r"\AProvide a detailed (?:summary|prompt) .{0,40}our conversation"),
    _phrase(COMMIT_MESSAGE, "system", r"\bgenerates concise, one-line Git commit messages\b"),
)


def marker_of(request: TurnRequest) -> str:
    """Which call beside the main line this is, or the empty string."""
    if request.marker:
        return request.marker
    system = next((m for m in request.messages if m["role"] in _SYSTEM), None)
    # claude-code writes what is left of its budget behind the newest message.
    last = next((m for m in reversed(request.messages) if m["role"] not in _SYSTEM), None)
    texts = {
        "system": plain_text(system)[:_SEARCHED_CHARACTERS] if system else "",
        "last": plain_text(last)[:_SEARCHED_CHARACTERS] if last else "",
    }
    if last is None or last["role"] != "user":
        texts["last"] = ""
    for phrase in _PHRASES:
        if phrase.expression.search(texts[phrase.where]):
            return phrase.marker
    return ""


def always_has_tools(request: TurnRequest) -> bool:
    """Whether the agent's main line would have tools, and this call has none."""
    return not request.tools and request.client.startswith(_WITH_TOOLS)
