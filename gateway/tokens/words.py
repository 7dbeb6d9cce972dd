"""Byte-level BPE text to ids word by word, with the ids of words that were met before remembered.

So are those of whole texts between special tokens: the system prompt of an agent is found, and not
tokenized again, in each of its conversations.

The library's own `encode` keeps count of where each character came from, which nothing here asks
for and which costs several times what the ids do. Its pre-tokenizer cuts text into words that are
encoded apart, so that the ids of a text are those of its words; where that cutting is not
understood, or a text shows otherwise, the library is asked for the whole.
"""

from __future__ import annotations

import json
import random
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from gateway.tokens.memory import Memory

Cut = Callable[[str], list[str]]

_MOST_WORDS, _LONGEST_WORD = 50_000, 48
#: Characters of texts in each of two generations; the ids of most take as many bytes.
_REMEMBERED = 2_000_000
#: The pattern that ByteLevel pre-tokenizers have built in.
_BUILT_IN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]")
_ASCII = {r"\p{L}": "A-Za-z", r"\p{N}": "0-9"}
#: ASCII as byte-level vocabularies spell it: what cannot be seen has stand-ins of its own.
_SPELLED = {code: 256 + index for index, code in enumerate((*range(0x21), 0x7F))}
#: Between a printed character and a space no pattern of this kind looks further back or ahead.
_GAPS = re.compile(r"(?<=[!-~])(?= )")
_PROBE_CHARACTERS = "aB9 \n'\t.-_(\"\r\f\x0b\x1c\x00,sldt"


class Words:
    """Text to ids: `encode` gives what the backend gives for text without special tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, cuts: list[Cut]) -> None:
        self._backend, self._model = backend, backend.model
        self._cuts = cuts
        self._known: dict[str, list[int]] = {}
        self._texts: Memory[array[int]] = Memory(_REMEMBERED)

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> Words | None:
        """None where the cutting is not understood, or shown not to be the backend's."""
        settings = json.loads(backend.to_str())
        cuts = _cuts(settings["pre_tokenizer"])
        if not cuts or settings["normalizer"] not in (None, {"type": "NFC"}):
            return None
        words = cls(backend, cuts)
        chosen = random.Random(20)  # noqa: S311 - the same texts each time
        probes = ["It's 1234 o'clock,  isn't it?\n\n  Yes\tor - no... \r\n"]
        probes += ["".join(chosen.choices(_PROBE_CHARACTERS, k=200)) for _ in range(20)]
        probes += [
            "caf\u00e9 au lait  \u00fcber\u00a0 x \u4f60\u597d 12 \U0001f600's\u3000 a\u0301 "
        ]
        same = all(words.encode(probe) == words._whole(probe) for probe in probes)
        return words if same else None

    def encode(self, text: str) -> list[int]:
        """Any number of threads may ask at once."""
        if (found := self._texts.get(text)) is not None:
            return found.tolist()
        ids = self._in_words(text) if text.isascii() else self._mixed(text)
        self._texts.put(text, array("i", ids))
        return ids

    def encode_parted(self, parts: Sequence[str], added: Mapping[str, int]) -> list[int]:
        """The same of a text cut at `added` tokens, of which every other part is one."""
        ids: list[int] = []
        remembered = self._texts.young
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(added[part])
            elif part:
                found = remembered.get(part)
                ids += self.encode(part) if found is None else found
        return ids

    def forget(self) -> None:
        """Keep nothing of what was encoded."""
        self._texts.clear()
        self._known.clear()

    def _in_words(self, text: str) -> list[int]:
        parts = [text]
        for cut in self._cuts:
            parts = cut(parts[0]) if len(parts) == 1 else [one for it in parts for one in cut(it)]
        known, ids = self._known, list[int]()
        for word in parts:
            ids += known.get(word) or self._learnt(word)
        return ids

    def _mixed(self, text: str) -> list[int]:
        """What is beyond ASCII is left to the backend, since its tables of letters differ."""
        ids: list[int] = []
        for part in _GAPS.split(text):
            if part.isascii():
                ids += self._in_words(part)
            else:
                ids += self._known.get(part) or self._learnt(part)
        return ids

    def _learnt(self, word: str) -> list[int]:
        if word.isascii():
            # As the model is given it, at a sixth of what the whole backend takes.
            ids = [token.id for token in self._model.tokenize(word.translate(_SPELLED))]
        else:
            ids = self._whole(word)
        if len(word) <= _LONGEST_WORD:
            if len(self._known) >= _MOST_WORDS:
                self._known.clear()
            self._known[word] = ids
        return ids

    def _whole(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _cuts(form: Mapping[str, Any] | None) -> list[Cut] | None:
    """How a pre-tokenizer cuts ASCII text, step by step; None for one that is not understood."""
    match form:
        case {"type": "Sequence", "pretokenizers": steps}:
            found = [_cuts(step) for step in steps]
            return None if None in found else [cut for each in found if each for cut in each]
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _by(_BUILT_IN)
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
            return []
        case {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }:
            return _by(pattern)
        case {"type": "Digits", "individual_digits": True}:
            return _by(r"[0-9]|[^0-9]+")
    return None


def _by(pattern: str) -> list[Cut] | None:
    """Cutting by a pattern, as far as ASCII goes. What it leaves out would be missed by a probe."""

    def bare(found: re.Match[str]) -> str:
        return _in_ascii(found.group(), "{}")

    pattern = _in_ascii(_CLASS.sub(bare, pattern), "[{}]")
    try:
        expression = re.compile(pattern, re.ASCII)
    except re.error:
        return None
    return None if expression.groups else [expression.findall]


def _in_ascii(pattern: str, form: str) -> str:
    for name, letters in _ASCII.items():
        pattern = pattern.replace(name, form.format(letters))
    return pattern
