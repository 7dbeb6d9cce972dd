"""Cut what a user wrote into sentences and clauses, and match their openings.

A phrase counts only as a whole clause (or as the opening of one, where a table says so), near the
beginning of the message and of bounded length. Quotations, code and quoted lines are taken out
first: a user who quotes thanks or blame has given neither.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

#: A phrase is looked for in so many sentences; past the first, only in messages this short.
SENTENCES = 3
SHORT_MESSAGE = 400
CLAUSE_LIMIT = 160

_CODE_LINES = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_SMILEY = re.compile(r"(?<=\s)[:;=]-?[)(dDpP](?=\s|$)")
_WRAPPED = re.compile(r"\"([^\"]*)\"")
_QUOTED_LINE = re.compile(r"^ *>.*$", re.MULTILINE)
#: Straight, curly, French, German and Japanese quotation marks; an open one runs to the end.
_QUOTES = re.compile(
    r"\"[^\"]*(?:\"|\Z)"
    r"|\u201c[^\u201d]*(?:\u201d|\Z)"
    r"|\u00ab[^\u00bb]*(?:\u00bb|\Z)"
    r"|\u201e[^\u201c\u201d]*(?:[\u201c\u201d]|\Z)"
    r"|[\u300c\u300e][^\u300d\u300f]*(?:[\u300d\u300f]|\Z)"
    r"|(?<!\w)'[^'\n]*'(?!\w)"
)
_SENTENCE = re.compile(r"\.+(?=\s|$|[\"')\]])|[!?\u3002]+|[;\n]+")
_BUT = r"(?:but|however|though|although|yet|except|aber|jedoch|mais|cependant|pero|sin embargo)\b"
_BUT_CJK = r"(?:\u4f46\u662f?|\u4e0d\u8fc7|\u4e0d\u904e|\u53ef\u662f|\u7136\u800c)"
_BUT_JA = r"(?:\u3067\u3082|\u3060\u3051\u3069|\u3057\u304b\u3057|\u305f\u3060\u3057?)"
_CLAUSE = re.compile(
    r"\s*[,\u3001]\s*|\s+[-\u2013\u2014]+\s+|\s*\u2014\s*" + rf"|\s+(?={_BUT})|(?={_BUT_CJK})"
)
_CONTRAST = re.compile(rf"(?:{_BUT}|doch\b|{_BUT_CJK}|{_BUT_JA})\s*")
_EDGE = re.compile(r"^\W+|[^\w:]+$")


@dataclass(frozen=True, slots=True)
class Clause:
    """`contrast` where it opens with a but; `asks` where it ends a question."""

    text: str
    contrast: bool
    asks: bool


Sentence = tuple[Clause, ...]


def fold(text: str) -> str:
    """Lower case, straight apostrophes, Latin accents off, one kind of space."""
    text = text.replace("\u2019", "'").replace("\u2018", "'").replace("\u00b4", "'")
    text = unicodedata.normalize("NFKD", text).casefold()
    text = re.sub(r"[\u0300-\u036f\ufe0f\u200d]", "", text)
    return unicodedata.normalize("NFC", text)


def sentences(text: str) -> tuple[Sentence, ...]:
    """The opening sentences of a message, each cut into clauses; the rest is not looked at."""
    text = _QUOTED_LINE.sub("", _CODE_LINES.sub("", text[:4096]))
    if whole := _WRAPPED.fullmatch(text.strip()):
        text = whole[1]  # Some clients put the user's words in quotes; nothing is quoted in them.
    text = _SMILEY.sub(" ", text)
    text = _QUOTES.sub('""', fold(text)).strip()
    wanted = SENTENCES if len(text) <= SHORT_MESSAGE else 1
    found: list[Sentence] = []
    start = 0
    for match in [*_SENTENCE.finditer(text), None]:
        end = match.start() if match else len(text)
        if sentence := _clauses(text[start:end], asks=bool(match and "?" in match[0])):
            found.append(sentence)
        if match is None or len(found) == wanted:
            break
        start = match.end()
    return tuple(found)


def _clauses(text: str, *, asks: bool) -> Sentence:
    clauses: list[Clause] = []
    contrast = False
    for piece in _CLAUSE.split(text[: 8 * CLAUSE_LIMIT]):
        clause = _EDGE.sub("", piece.strip())
        opening = _CONTRAST.match(clause)
        # A trailing "though" contrasts with nothing; a lone "but," belongs to what follows.
        if opening:
            clause, contrast = _EDGE.sub("", clause[opening.end() :]), True
        if clause:
            clauses.append(Clause(clause[:CLAUSE_LIMIT], contrast, asks=False))
            contrast = False
    if clauses and asks:
        clauses[-1] = replace(clauses[-1], asks=True)
    return tuple(clauses)
