"""What known agents reveal of calls beside their main line: sub-agents and housekeeping.

Headers are read at the edge (`TurnRequest.marker`). Phrases are those of the agents' own prompts,
looked for where the agent puts them, and nowhere else: a user may say the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.records import TurnRequest, plain_text

SUBAGENT = "subagent"
COMPACTION = "compaction"
TITLE = "title"
COMMIT_MESSAGE = "commit_message"
TAGS = "tags"
FOLLOW_UPS = "follow_ups"
SEARCH_QUERIES = "search_queries"
AUTOCOMPLETE = "autocomplete"
IMAGE_PROMPT = "image_prompt"
ABOUT_SESSION = "about_session"

_SEARCHED_CHARACTERS = 20_000
_ABOUT_CHARACTERS = 4_000
_SYSTEM = ("system", "developer")
_ABOUT = re.compile(r"\b(?:summar|title|tags?\b|follow-?up|suggest)", re.IGNORECASE)

#: Agents whose main line never comes without tools, by the start of their User-Agent.
_WITH_TOOLS = ("claude-cli/", "opencode/", "QwenCode/", "codex")


@dataclass(frozen=True, slots=True)
class _Phrase:
    """`where` is `system` (the first system message's start) or `last` (what was said last).

    No text without its `words` is found by it. They are looked for before: all expressions over
    the system prompt of an agent took 160 µs, all words take 5.
    """

    marker: str
    where: str
    words: str
    finds: Callable[[str], re.Match[str] | None]


def _phrase(marker: str, where: str, text: str, words: str = "") -> _Phrase:
    """One without `words` is to begin the text, and is looked for nowhere else."""
    expression = re.compile(text)
    return _Phrase(marker, where, words, expression.search if words else expression.match)


_PHRASES = (
    _phrase(SUBAGENT, "system", r"\bcc_is_subagent=true\b", "cc_is_subagent"),
    _phrase(TITLE, "system", r"\AYou are a title generator\b"),
    _phrase(
        TITLE, "system", r"\bGenerate a (?:concise|short), sentence-case title\b", ", sentence-case"
    ),
    _phrase(COMPACTION, "system", r"\AYou are the component that summarizes internal chat history"),
    _phrase(COMPACTION, "system", r"\AYou are a (?:context )?summarization assistant\b"),
    _phrase(
        COMPACTION,
        "last",
        r"\bYour task is to create a detailed summary of the conversation",
        "a detailed summary",
    ),
    _phrase(
        COMPACTION, "last", r"\bYou are performing a CONTEXT CHECKPOINT COMPACTION\b", "CHECKPOINT"
    ),
    _phrase(COMPACTION, "last", r"\AProvide a detailed (?:summary|prompt) .{0,40}our conversation"),
    _phrase(COMPACTION, "last", r"\A<role>\s*Context Extraction Assistant\b"),
    # Open WebUI's; its retrieval, which begins with `### Task:` too, is on the main line.
    _phrase(TITLE, "last", r"\A### Task:\s+Generate a concise, 3-5 word title\b"),
    _phrase(TAGS, "last", r"\A### Task:\s+Generate 1-3 broad tags\b"),
    _phrase(FOLLOW_UPS, "last", r"\A### Task:\s+Suggest 3-5 relevant follow-up\b"),
    _phrase(SEARCH_QUERIES, "last", r"\A### Task:\s+Analyze the chat history\b.{0,80}\bquer"),
    _phrase(AUTOCOMPLETE, "last", r"\A### Task:\s+You are an autocompletion system\b"),
    _phrase(IMAGE_PROMPT, "last", r"\A### Task:\s+Generate a detailed prompt for an? image\b"),
    # LibreChat, LobeChat, aider.
    _phrase(
        TITLE,
        "last",
        r"\bgenerate a concise, 5-word-or-less title for the conversation\b",
        "5-word-or-less",
    ),
    _phrase(TITLE, "last", r"\AProvide a concise, 5-word-or-less title for the conversation\b"),
    _phrase(TITLE, "system", r"\AYou are a professional conversation summarizer\b.{0,80}\btitle\b"),
    _phrase(COMPACTION, "system", r"\A\*Briefly\* summarize this partial conversation\b"),
    _phrase(
        COMMIT_MESSAGE,
        "system",
        r"\bgenerates concise, one-line Git commit messages\b",
        "Git commit",
    ),
)


def marker_of(request: TurnRequest) -> str:
    """Which call beside the main line this is, or the empty string."""
    if request.marker:
        return request.marker
    system = next((m for m in request.messages if m["role"] in _SYSTEM), None)
    # claude-code writes what is left of its budget behind the newest message.
    last = next((m for m in reversed(request.messages) if m["role"] not in _SYSTEM), None)
    opening = plain_text(system)[:_SEARCHED_CHARACTERS] if system else ""
    said = plain_text(last)[:_SEARCHED_CHARACTERS] if last and last["role"] == "user" else ""
    for phrase in _PHRASES:
        text = opening if phrase.where == "system" else said
        if text and phrase.words in text and phrase.finds(text):
            return phrase.marker
    return ""


def asks_about(request: TurnRequest) -> bool:
    """Whether a single question is about what it quotes: a summary, a title, tags, ideas."""
    spoken = [plain_text(message) for message in request.messages]
    return any(_ABOUT.search(text[:_ABOUT_CHARACTERS]) for text in spoken if text)


def always_has_tools(request: TurnRequest) -> bool:
    """Whether the agent's main line would have tools, and this call has none."""
    return not request.tools and request.client.startswith(_WITH_TOOLS)
