"""Main line or side call. Pure.

Only main-line turns are trained on. What cannot be known yet is `unknown`: served, held, and
promoted to main once a later request extends it.
"""

from __future__ import annotations

import re

import msgspec

from gateway.classify.markers import (
    ABOUT_SESSION,
    COMPACTION,
    SUBAGENT,
    always_has_tools,
    asks_about,
    marker_of,
)
from gateway.config import SessionSettings
from gateway.errors import ConfigError
from gateway.records import (
    Candidate,
    Message,
    Resolution,
    TurnKind,
    TurnRequest,
    holds_reply,
    plain_text,
)

#: Patterns see at most this much of a message.
_MATCHED_CHARACTERS = 20_000
#: A title, a word or a number; a reply of the main line may be so many times as long.
_FEW_TOKENS = 64
_MANY = 4
_CONTENT = ("system", "last_user")


class Kind(msgspec.Struct, frozen=True, gc=False):
    """What a turn is, by which rule, and how sure that rule is (1 is said by the client)."""

    kind: TurnKind
    rule: str
    confidence: float


class Classifier:
    """The rules of one deployment: the operator's patterns, markers of known agents, structure.

    A pattern matches the client's word for the call (`X-Turn-Type`), the marker that was found
    (`subagent`, `compaction`, `title`, `commit_message`) and the client's name; with `system:` or
    `last_user:` before it, the content of those messages instead.
    Raises ConfigError for a pattern that is no regular expression.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._trainable = [_Pattern(text) for text in settings.trainable_patterns]
        self._auxiliary = [_Pattern(text) for text in settings.auxiliary_patterns]

    def classify(self, request: TurnRequest, resolution: Resolution) -> Kind:
        """The kind of a request, before it is served."""
        if request.declared_kind is not None:
            return Kind(request.declared_kind, "declared", 1.0)
        marker = marker_of(request)
        if self._trainable and any(each.matches(request, marker) for each in self._trainable):
            return Kind(TurnKind.MAIN, "trainable_pattern", 0.95)
        if self._auxiliary and any(each.matches(request, marker) for each in self._auxiliary):
            return Kind(TurnKind.SIDE, "auxiliary_pattern", 0.95)
        if marker:
            return Kind(TurnKind.SIDE, marker, 0.9)
        if resolution.called:
            return Kind(TurnKind.SIDE, SUBAGENT, 0.8)
        if resolution.parent is not None:
            return _follower(request, resolution)
        return _opener(request, resolution)


def _follower(request: TurnRequest, resolution: Resolution) -> Kind:
    parent = resolution.parent
    assert parent is not None
    if parent.kind is TurnKind.SIDE:
        return Kind(TurnKind.SIDE, "extends_side", 0.8)
    if resolution.new_from >= len(request.messages):
        return Kind(TurnKind.UNKNOWN, "nothing_new", 0.5)
    if resolution.beside:
        return Kind(TurnKind.UNKNOWN, "asked_beside_before", 0.6)
    new = {message["role"] for message in request.messages[resolution.new_from :]}
    if resolution.branch_reason == "tools_changed" and not request.tools and new != {"tool"}:
        # Compaction and title calls look like this; so do some main lines, which go on.
        if always_has_tools(request):
            return Kind(TurnKind.SIDE, COMPACTION, 0.8)
        return Kind(TurnKind.UNKNOWN, "extends_without_tools", 0.5)
    if "user" in new and _one_shot(request, resolution, parent):
        return Kind(TurnKind.UNKNOWN, "one_shot_over_history", 0.5)
    return Kind(TurnKind.MAIN, "extends_chain", 0.7 if resolution.ambiguous else 0.9)


def _one_shot(request: TurnRequest, resolution: Resolution, parent: Candidate) -> bool:
    """Whether a reply is wanted in a form, of a call or of a size that the turn before had not."""
    sampling = request.sampling
    if sampling.grammar is not None and not parent.grammar:
        return True
    if resolution.branch_reason == "tools_changed" and request.tool_choice == "required":
        return True
    if resolution.branch_reason is None:
        # With the line's own instructions a short answer is a wish like another.
        return False
    few, before = sampling.max_tokens, parent.max_tokens
    return few is not None and few <= _FEW_TOKENS and (before is None or before > _MANY * few)


def _opener(request: TurnRequest, resolution: Resolution) -> Kind:
    if not request.tools and not holds_reply(request.messages):
        if resolution.beside_tools:
            return Kind(TurnKind.SIDE, "one_shot_beside_tools", 0.7)
        if resolution.rule == "quotes" and asks_about(request):
            return Kind(TurnKind.SIDE, ABOUT_SESSION, 0.8)
        if always_has_tools(request):
            return Kind(TurnKind.SIDE, "one_shot_without_tools", 0.8)
        if request.sampling.grammar is not None:
            # Some conversations have replies by a schema throughout.
            return Kind(TurnKind.UNKNOWN, "one_shot_with_schema", 0.6)
    return Kind(TurnKind.UNKNOWN, "first_turn", 0.5)


def promoted_by(resolution: Resolution, kind: Kind) -> bool:
    """Whether a request shows that its parent, held as unknown, was on the main line."""
    parent = resolution.parent
    return parent is not None and parent.kind is TurnKind.UNKNOWN and kind.kind is TurnKind.MAIN


class _Pattern:
    def __init__(self, text: str) -> None:
        where, colon, rest = text.partition(":")
        self._where = where if colon and where in _CONTENT else None
        try:
            self._expression = re.compile(rest if self._where else text, re.IGNORECASE)
        except re.error as error:
            raise ConfigError(
                f"session_awareness: {text!r} is no regular expression: {error}"
            ) from None

    def matches(self, request: TurnRequest, marker: str) -> bool:
        if self._where is None:
            texts = [text for text in (request.turn_type, marker, request.client) if text]
        elif self._where == "system":
            texts = [_text(m) for m in request.messages if m["role"] in ("system", "developer")]
        else:
            texts = [_text(m) for m in request.messages if m["role"] == "user"][-1:]
        return any(self._expression.search(text) for text in texts)


def _text(message: Message) -> str:
    return plain_text(message)[:_MATCHED_CHARACTERS]
