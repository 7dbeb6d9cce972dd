"""What the simulated users ask, and the fact questions that they never ask.

The facts guard against a model that learns to please and forgets what it knew: they are asked
aside, at temperature 0, and never trained on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EVERYDAY: tuple[str, ...] = (
    "How do I keep bread fresh for longer?",
    "Why does my phone battery drain so fast?",
    "What is a good way to fall asleep?",
    "How often should I water a cactus?",
    "Why do we get hiccups?",
    "What is compound interest?",
    "How do I remove a coffee stain?",
    "Why is the sky red at sunset?",
    "What does a thermostat do?",
    "How do I boil an egg?",
    "What is the point of stretching?",
    "Why do cats purr?",
    "How does a refrigerator stay cold?",
    "What is a password manager?",
    "Why does popcorn pop?",
    "How do I stop my glasses from fogging up?",
    "What is recycling good for?",
    "Why do leaves fall in autumn?",
    "How does a bicycle stay upright?",
    "What is a budget?",
    "Why does bread rise?",
    "How do I make my handwriting neater?",
    "What is the difference between weather and climate?",
    "Why do onions make me cry?",
    "How does soap clean hands?",
    "What is a good breakfast before a run?",
    "Why do dogs wag their tails?",
    "How do I ask for a day off?",
    "What does a library do for a town?",
    "Why do we dream?",
    "How do I sharpen a kitchen knife?",
    "What is inflation?",
    "Why does ice float on water?",
    "How can I remember names better?",
    "What is a spreadsheet used for?",
    "Why do my ears pop on a plane?",
    "How does a microwave heat food?",
    "What is a calorie?",
    "Why is exercise good for the heart?",
    "How do I keep houseplants alive in winter?",
    "What is an insurance deductible?",
    "Why do mosquito bites itch?",
    "How do bees make honey?",
    "What is a time zone?",
    "Why do we yawn?",
    "How do I clean a wooden table?",
    "What does sunscreen do?",
    "Why is it hard to learn a language as an adult?",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A question with one right answer. `answer` is a regular expression, case ignored."""

    question: str
    answer: str

    def right(self, reply: str) -> bool:
        return re.search(self.answer, reply, re.IGNORECASE) is not None


FACTS: tuple[Fact, ...] = (
    Fact("What is the capital of France?", r"\bParis\b"),
    Fact("What is the capital of Italy?", r"\bRome\b"),
    Fact("What is the capital of Japan?", r"\bTokyo\b"),
    Fact("What is the capital of Egypt?", r"\bCairo\b"),
    Fact("What is the capital of Greece?", r"\bAthens\b"),
    Fact("How many days are there in a week?", r"\b(7|seven)\b"),
    Fact("How many minutes are in an hour?", r"\b(60|sixty)\b"),
    Fact("How many sides does a triangle have?", r"\b(3|three)\b"),
    Fact("What is the largest planet in the solar system?", r"\bJupiter\b"),
    Fact("Which planet is known as the Red Planet?", r"\bMars\b"),
    Fact("Who painted the Mona Lisa?", r"\b(Leonardo|da Vinci)\b"),
    Fact("Who wrote Romeo and Juliet?", r"\bShakespeare\b"),
    Fact("What is the largest ocean on Earth?", r"\bPacific\b"),
    Fact("What is the tallest mountain in the world?", r"\bEverest\b"),
    Fact("What is frozen water called?", r"\bice\b"),
    Fact("What gas do people need to breathe?", r"\boxygen\b"),
    Fact("What is the chemical symbol for gold?", r"\bAu\b"),
    Fact("Which metal is attracted to a magnet?", r"\biron\b"),
    Fact("What star does the Earth orbit?", r"\bSun\b"),
    Fact("On which continent is Kenya?", r"\bAfrica\b"),
)
