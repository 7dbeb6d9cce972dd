"""Phrase tables, one language a file."""

from __future__ import annotations

from judge.rules.lexicon.base import Lexicon
from judge.rules.lexicon.chinese import CHINESE
from judge.rules.lexicon.english import ENGLISH
from judge.rules.lexicon.french import FRENCH
from judge.rules.lexicon.german import GERMAN
from judge.rules.lexicon.japanese import JAPANESE
from judge.rules.lexicon.spanish import SPANISH

LEXICONS = (ENGLISH, CHINESE, SPANISH, FRENCH, GERMAN, JAPANESE)

__all__ = ["LEXICONS", "Lexicon"]
