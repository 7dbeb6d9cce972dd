"""The shape of a language's phrase table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

Phrases = tuple[str, ...]
_Patterns = tuple[re.Pattern[str], re.Pattern[str] | None, re.Pattern[str] | None]

#: Expressions peeled off either side of a clause.
_PEELED = 6


@dataclass(frozen=True)
class Lexicon:
    """Phrases of one language as regular expressions over folded clauses (see `phrases.fold`).

    A phrase must be the whole clause after any `fillers` (`refusals` too, where it blames) and
    before any `endings`; one that ends in … need only open it. `solicits` is searched in replies.
    `spaced` is off where words are not parted by spaces.
    """

    name: str
    fillers: Phrases
    refusals: Phrases
    requests: Phrases
    endings: Phrases
    thanks: Phrases
    praise: Phrases
    moves_on: Phrases
    redo: Phrases
    correction: Phrases
    no: Phrases
    solicits: Phrases
    spaced: bool = True

    def says(self, intent: str, clause: str) -> bool:
        """Whether the clause says so: what leads up to a phrase and what ends it is peeled off.

        Peeling goes one expression at a time and never back, so that no text makes it slow.
        """
        body, lead, ending = self._patterns[intent]
        ends = [len(clause)]
        while ending and len(ends) <= _PEELED and (match := ending.search(clause, 0, ends[-1])):
            ends.append(match.start())
        start = 0
        for _ in range(_PEELED + 1):
            if any(body.fullmatch(clause, start, end) for end in ends if end > start):
                return True
            match = lead.match(clause, start) if lead else None
            if match is None:
                break
            start = match.end()
        return False

    def is_filler(self, clause: str) -> bool:
        return self._filler.fullmatch(clause) is not None

    def solicited(self, reply: str) -> bool:
        return self._soliciting.search(reply) is not None

    @cached_property
    def _patterns(self) -> dict[str, _Patterns]:
        polite = (*self.fillers, *self.requests)
        blame = (*polite, *self.refusals)
        before = {
            "thanks": self.fillers,
            "praise": self.fillers,
            "moves_on": polite,
            "redo": blame,
            "correction": blame,
        }
        patterns = {
            intent: (
                self._body(getattr(self, intent)),
                re.compile(f"(?:{_longest_first(lead)}){' +' if self.spaced else ''}"),
                re.compile(f"{' +' if self.spaced else ''}(?:{_longest_first(self.endings)})\\Z"),
            )
            for intent, lead in before.items()
        }
        return {**patterns, "no": (self._body(self.no), None, None)}

    @cached_property
    def _filler(self) -> re.Pattern[str]:
        words = _longest_first((*self.fillers, *self.endings))
        return re.compile(f"(?:(?:{words}){'(?: +|$)' if self.spaced else ''})++")

    @cached_property
    def _soliciting(self) -> re.Pattern[str]:
        return re.compile("|".join(self.solicits))

    def _body(self, phrases: Phrases) -> re.Pattern[str]:
        edge = r"\b" if self.spaced else ""
        options = [phrase for phrase in phrases if not phrase.endswith("…")]
        options += [f"(?:{phrase[:-1]}){edge}.*" for phrase in phrases if phrase.endswith("…")]
        return re.compile("|".join(options), re.DOTALL)


def _longest_first(phrases: Phrases) -> str:
    return "|".join(sorted(phrases, key=len, reverse=True))
