"""What the user said next: thanks, praise, going on, redo, correction, a plain no.

Thanks, praise and going on that the reply asked for score 0, whoever would judge after the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from judge.rules.base import Rule
from judge.rules.lexicon import LEXICONS, Lexicon
from judge.rules.phrases import Clause, Sentence, fold, sentences
from judge.verdicts import Evidence, Finding, edges

Look = Callable[[Evidence], Finding | None]

HINT_LIMIT = 400
_HINT_MIN = 8


def _matches(clause: Clause, intent: str) -> Lexicon | None:
    return next((lex for lex in LEXICONS if lex.says(intent, clause.text)), None)


def _is_filler(clause: Clause) -> bool:
    return any(lexicon.is_filler(clause.text) for lexicon in LEXICONS)


def _solicited(evidence: Evidence) -> bool:
    """Whether the reply asked for the praise or the going on that it got."""
    text = fold(edges(evidence.reply_text))
    return any(lexicon.solicited(text) for lexicon in LEXICONS)


def _blame(intent: str) -> Look:
    def look(evidence: Evidence) -> Finding | None:
        for answer in evidence.answers:
            for clause in _clauses(sentences(answer)):
                if clause.asks and intent == "correction":
                    continue
                if lexicon := _matches(clause, intent):
                    return Finding(
                        score=-1.0,
                        reason=f"the user's words ({lexicon.name})",
                        hint=_hint(answer),
                    )
        return None

    return look


def _denial(evidence: Evidence) -> Finding | None:
    """A no that answers no question, followed by what is right instead."""
    for answer in evidence.answers[:1]:
        clauses = list(_clauses(sentences(answer)))
        if not clauses or not _matches(clauses[0], "no") or _asks(evidence.reply_text):
            return None
        rest = clauses[1:]
        if any(_matches(c, i) for c in rest[:2] for i in ("thanks", "praise", "moves_on")):
            return None
        return Finding(score=-1.0, reason="the user says no", hint=_hint(answer))
    return None


def _asks(reply: str) -> bool:
    """Whether the reply ends with a question, so that a no is its answer."""
    tail = fold(reply.strip()[-200:])
    return "?" in tail


def _pleased(intent: str) -> Look:
    """Thanks or praise that opens the answer; a but right after takes it back."""

    def look(evidence: Evidence) -> Finding | None:
        opening = _opening(evidence)
        if opening is None:
            return None
        first, contrast = opening
        for clause in first:
            if clause.asks or contrast:
                return None
            if lexicon := _matches(clause, intent):
                return Finding(score=1.0, reason=f"the user's words ({lexicon.name})")
            if not (
                _is_filler(clause)
                or _matches(clause, "praise")
                or (intent == "praise" and _matches(clause, "no"))
            ):
                return None
        return None

    return look


def _moves_on(evidence: Evidence) -> Finding | None:
    opening = _opening(evidence)
    if opening is None or opening[1]:
        return None
    for clause in opening[0]:
        if lexicon := _matches(clause, "moves_on"):
            return Finding(score=1.0, reason=f"the user goes on ({lexicon.name})")
        if not (_is_filler(clause) or _matches(clause, "praise")):
            return None
    return None


def _unasked(look: Look) -> Look:
    """The same, unless the reply asked for it."""

    def unasked(evidence: Evidence) -> Finding | None:
        found = look(evidence)
        return None if found is not None and _solicited(evidence) else found

    return unasked


def _asked_for(evidence: Evidence) -> Finding | None:
    """What would please, were it not that the reply asked for it: it tells nothing."""
    if any(look(evidence) for look in (_THANKS, _PRAISE, _moves_on)) and _solicited(evidence):
        return Finding(score=0.0, reason="the reply asked for what the user says")
    return None


def _opening(evidence: Evidence) -> tuple[Sentence, bool] | None:
    """The first sentence of the first answer, and whether a but stands in the first two."""
    found = sentences(evidence.answers[0]) if evidence.answers else ()
    if not found:
        return None
    return found[0], any(clause.contrast for clause in _clauses(found[:2]))


def _clauses(found: tuple[Sentence, ...]) -> Iterator[Clause]:
    for sentence in found:
        yield from sentence


def _hint(answer: str) -> str | None:
    """The user's own words, where they are more than a bare complaint."""
    words = " ".join(answer.split())
    return words[:HINT_LIMIT] if len(words) >= _HINT_MIN else None


_THANKS, _PRAISE = _pleased("thanks"), _pleased("praise")

CORRECTION = Rule("correction", 0.9, _blame("correction"))
REDO = Rule("redo", 0.9, _blame("redo"))
DENIAL = Rule("denial", 0.7, _denial)
THANKS = Rule("thanks", 0.9, _unasked(_THANKS))
PRAISE = Rule("praise", 0.85, _unasked(_PRAISE))
MOVES_ON = Rule("moves_on", 0.65, _unasked(_moves_on))
SOLICITED = Rule("solicited", 0.8, _asked_for)
