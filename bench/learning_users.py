"""Users with preferences: each shows by what they say next only whether a reply met theirs.

Three kinds: an answer that has come to its end within a number of words, a polite form, a number
at the end. The base model meets each of them now and then: what is never met teaches nothing. The
questions of the first two and the people of the first kind are the demo's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.demo.questions import EVERYDAY
from gateway.demo.users import USERS

_POLITE = re.compile(
    r"\b(?:sir|madam|my dear|please|thank you|thanks|glad|happy to|pleasure|pleased|you're welcome"
    r"|sorry|lovely|(?:excellent|good|great|wonderful) question)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty"
    r"|forty|fifty|sixty|hundred|thousand))\W*$",
    re.IGNORECASE,
)

COUNTS: tuple[str, ...] = (
    "How many hours are in two days?",
    "What is 6 plus 9?",
    "How many legs do three dogs have?",
    "What is 20 minus 8?",
    "How many wheels do two cars have?",
    "What is 7 times 5?",
    "How many fingers do two people have?",
    "How many months are in three years?",
    "What is half of 90?",
    "How many eggs are in two dozen?",
    "What is 15 plus 4?",
    "How many corners do two squares have?",
    "What is 100 minus 1?",
    "How many weeks are in two years?",
    "What is 3 times 30?",
    "How many seconds are in two minutes?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """`likes(reply, finished)`; `complaints` is what they say otherwise, `hint` what they meant."""

    name: str
    system: str
    questions: Sequence[str]
    likes: Callable[[str, bool], bool]
    complaints: Sequence[str]
    hint: str

    def score(self, reply: str, finished: bool) -> float:
        return 1.0 if self.likes(reply, finished) else -1.0


def within(words: int) -> Callable[[str, bool], bool]:
    return lambda reply, finished: finished and 0 < len(reply.split()) <= words


def polite(reply: str, finished: bool) -> bool:
    return finished and _POLITE.search(reply) is not None


def ends_with_number(reply: str, finished: bool) -> bool:
    return finished and _NUMBER.search(reply) is not None


def _brief(number: int) -> Person:
    one = USERS[number]
    return Person(
        name=f"brief-{one.name}",
        system=one.system,
        questions=EVERYDAY,
        likes=within(one.words),
        complaints=("Shorter, please.", "That is too long. Please make it shorter."),
        hint="Answer in one short sentence.",
    )


def _polite(number: int) -> Person:
    return Person(
        name=f"polite-{number}",
        system="You are a courteous butler. Address the user as sir or madam and answer in one "
        "short sentence.",
        questions=EVERYDAY,
        likes=polite,
        complaints=("You could be more polite.", "Please say that more politely."),
        hint="Address the user as sir or madam.",
    )


def _counting(number: int) -> Person:
    return Person(
        name=f"number-{number}",
        system="You are a calculator. Answer in one short sentence.",
        questions=COUNTS,
        likes=ends_with_number,
        complaints=("Please put the number at the end.", "End with the number, please."),
        hint="End the answer with the number alone, and nothing after it.",
    )


#: As many of each kind.
PEOPLE: tuple[Person, ...] = (
    *(_brief(number) for number in (0, 3, 5)),
    *(_polite(number) for number in (1, 2, 3)),
    *(_counting(number) for number in (1, 2, 3)),
)


def asked(count: int, rng: random.Random) -> list[tuple[Person, str]]:
    """Who asks what next: people in turn, so that a batch of any size holds all kinds."""
    return [
        (person := PEOPLE[number % len(PEOPLE)], rng.choice(person.questions))
        for number in range(count)
    ]
