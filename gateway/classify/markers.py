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
    """An expression that shows a `marker`. One without `words` is to begin the text.

    No text without the `words` is found by it. They are looked for before: all expressions over
    the system prompt of an agent took 160 µs, all words take 5.
    """

    marker: str
    where: str
    text: str
    words: str = ""


_PHRASES = (
    _Phrase(SUBAGENT, "system", r"\bcc_is_subagent=true\b", "cc_is_subagent"),
    _Phrase(TITLE, "system", r"\AYou are a title generator\b"),
    _Phrase(
        TITLE, "system", r"\bGenerate a (?:concise|short), sentence-case title\b", ", sentence-case"
    ),
    _Phrase(COMPACTION, "system", r"\AYou are the component that summarizes internal chat history"),
    _Phrase(COMPACTION, "system", r"\AYou are a (?:context )?summarization assistant\b"),
    _Phrase(
        COMPACTION,
        "last",
        r"\bYour task is to create a detailed summary of the conversation",
        "a detailed summary",
    ),
    _Phrase(
        COMPACTION, "last", r"\bYou are performing a CONTEXT CHECKPOINT COMPACTION\b", "CHECKPOINT"
    ),
    _Phrase(COMPACTION, "last", r"\AProvide a detailed (?:summary|prompt) .{0,40}our conversation"),
    _Phrase(COMPACTION, "last", r"\A<role>\s*Context Extraction Assistant\b"),
    # Open WebUI's; its retrieval, which begins with `### Task:` too, is on the main line.
    _Phrase(TITLE, "last", r"\A### Task:\s+Generate a concise, 3-5 word title\b"),
    _Phrase(TAGS, "last", r"\A### Task:\s+Generate 1-3 broad tags\b"),
    _Phrase(FOLLOW_UPS, "last", r"\A### Task:\s+Suggest 3-5 relevant follow-up\b"),
    _Phrase(SEARCH_QUERIES, "last", r"\A### Task:\s+Analyze the chat history\b.{0,80}\bquer"),
    _Phrase(AUTOCOMPLETE, "last", r"\A### Task:\s+You are an autocompletion system\b"),
    _Phrase(IMAGE_PROMPT, "last", r"\A### Task:\s+Generate a detailed prompt for an? image\b"),
    # LibreChat, LobeChat, aider.
    _Phrase(
        TITLE,
        "last",
        r"\bgenerate a concise, 5-word-or-less title for the conversation\b",
        "5-word-or-less",
    ),
    _Phrase(TITLE, "last", r"\AProvide a concise, 5-word-or-less title for the conversation\b"),
    _Phrase(TITLE, "system", r"\AYou are a professional conversation summarizer\b.{0,80}\btitle\b"),
    _Phrase(COMPACTION, "system", r"\A\*Briefly\* summarize this partial conversation\b"),
    _Phrase(
        COMMIT_MESSAGE,
        "system",
        r"\bgenerates concise, one-line Git commit messages\b",
        "Git commit",
    ),
)


#: The rank of no phrase.
_NOWHERE = len(_PHRASES)


class _Phrases:
    """Those looked for in one place: `system` (the first system message's start) or `last`.

    Of several the first in the list of all counts. Those that begin a text are one expression, a
    group each, which is why none has a group of its own.
    """

    def __init__(self, where: str) -> None:
        mine = [(rank, phrase) for rank, phrase in enumerate(_PHRASES) if phrase.where == where]
        self._within = [
            (rank, phrase.words, re.compile(phrase.text).search)
            for rank, phrase in mine
            if phrase.words
        ]
        opening = [(rank, phrase) for rank, phrase in mine if not phrase.words]
        self._opening = re.compile("|".join(f"({phrase.text})" for _, phrase in opening)).match
        self._ranks = [rank for rank, _ in opening]

    def rank(self, text: str) -> int:
        """The place in the list of what is found first, or a place behind the list."""
        best = _NOWHERE
        if (opening := self._opening(text)) is not None:
            best = self._ranks[(opening.lastindex or 0) - 1]
        for rank, words, search in self._within:
            if words in text and rank < best and search(text):
                best = rank
        return best


_IN_SYSTEM, _SAID_LAST = _Phrases("system"), _Phrases("last")
_MARKERS = (*(phrase.marker for phrase in _PHRASES), "")


def marker_of(request: TurnRequest) -> str:
    """Which call beside the main line this is, or the empty string."""
    if request.marker:
        return request.marker
    system = last = None
    for message in request.messages:
        if message["role"] in _SYSTEM:
            system = message
            break
    # claude-code writes what is left of its budget behind the newest message.
    for message in reversed(request.messages):
        if message["role"] not in _SYSTEM:
            last = message
            break
    found = _NOWHERE
    if system is not None:
        found = _IN_SYSTEM.rank(plain_text(system)[:_SEARCHED_CHARACTERS])
    if last is not None and last["role"] == "user":
        found = min(found, _SAID_LAST.rank(plain_text(last)[:_SEARCHED_CHARACTERS]))
    return _MARKERS[found]


def asks_about(request: TurnRequest) -> bool:
    """Whether a single question is about what it quotes: a summary, a title, tags, ideas."""
    spoken = [plain_text(message) for message in request.messages]
    return any(_ABOUT.search(text[:_ABOUT_CHARACTERS]) for text in spoken if text)


def always_has_tools(request: TurnRequest) -> bool:
    """Whether the agent's main line would have tools, and this call has none."""
    return not request.tools and request.client.startswith(_WITH_TOOLS)
