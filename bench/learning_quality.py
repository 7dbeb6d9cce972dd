"""What an arm must not lose: facts at temperature 0, and the likelihood of good answers.

Neither is ever trained on. A score that rises while one of them falls was not learned, it was
paid for.
"""

from __future__ import annotations

from statistics import fmean

from bench.learning_model import Policy
from gateway.demo.questions import FACTS

_SYSTEM = "You are a helpful assistant. Keep your answers short."
_TOKENS = 24
#: Largest drop of the mean log-probability of a reference answer's token, in nats.
TOLERANCE = 0.1
#: Largest drop of the share of facts that are right: two questions of twenty.
FACTS_TOLERANCE = 0.1

ANSWERS: tuple[tuple[str, str], ...] = (
    (
        "What is photosynthesis?",
        (
            "Photosynthesis is how plants turn sunlight, water and carbon "
            "dioxide into sugar and oxygen."
        ),
    ),
    ("What is gravity?", "Gravity is the force by which objects with mass attract each other."),
    ("What is a noun?", "A noun is a word that names a person, place, thing or idea."),
    (
        "Why is the sea salty?",
        (
            "Rivers carry dissolved minerals from rocks into the sea, where the "
            "salt stays when water evaporates."
        ),
    ),
    ("What does the heart do?", "The heart pumps blood through the body."),
    ("What is an island?", "An island is a piece of land surrounded by water."),
    ("What is a triangle?", "A triangle is a shape with three sides and three angles."),
    ("What causes tides?", "Tides are caused by the gravity of the moon and the sun."),
    ("What is DNA?", "DNA is the molecule that carries the genetic instructions of living things."),
    (
        "What is a democracy?",
        (
            "A democracy is a system of government in which the people choose "
            "their leaders by voting."
        ),
    ),
    ("What is an atom?", "An atom is the smallest unit of an element."),
    ("What is steel made of?", "Steel is made of iron and a small amount of carbon."),
    ("What is a verb?", "A verb is a word that describes an action or a state."),
    ("Why do we have day and night?", "We have day and night because the Earth rotates."),
    ("What is a desert?", "A desert is a dry region that gets very little rain."),
    ("What do lungs do?", "The lungs take in oxygen and remove carbon dioxide."),
    ("What is a mammal?", "A mammal is a warm-blooded animal that feeds its young with milk."),
    ("What is a telescope for?", "A telescope is used to see distant objects."),
    (
        "What is a prime number?",
        ("A prime number is a number greater than 1 that is divisible only by 1 and itself."),
    ),
    ("What is evaporation?", "Evaporation is the process by which a liquid becomes a gas."),
    ("What is a synonym?", "A synonym is a word with the same meaning as another word."),
    ("What is the Moon?", "The Moon is the Earth's only natural satellite."),
    ("What is a thermometer for?", "A thermometer measures temperature."),
    ("What is paper made of?", "Paper is made from wood fibers."),
    ("What is a planet?", "A planet is a large body that orbits a star."),
    ("What is bread made of?", "Bread is made from flour, water, salt and yeast."),
    (
        "What is a virus?",
        (
            "A virus is a tiny infectious agent that multiplies only inside the cells "
            "of a living host."
        ),
    ),
    ("What is a map?", "A map is a drawing that shows where things are."),
    (
        "What is a computer program?",
        ("A computer program is a set of instructions that a computer follows."),
    ),
    ("Why do birds have feathers?", "Feathers keep birds warm and help them to fly."),
    (
        "What is an earthquake?",
        ("An earthquake is a shaking of the ground caused by the movement of the Earth's plates."),
    ),
    ("What is a century?", "A century is a period of one hundred years."),
)


def facts_right(policy: Policy) -> float:
    """The share of fact questions that are answered right at temperature 0."""
    prompts = [
        policy.prompt(
            [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": fact.question}]
        )
        for fact in FACTS
    ]
    replies = policy.generate(prompts, _TOKENS, 0.0, 0)
    return fmean(
        fact.right(policy.text(reply.ids)) for fact, reply in zip(FACTS, replies, strict=True)
    )


def answer_logprob(policy: Policy) -> float:
    """Mean log-probability, in nats a token, of the reference answers under teacher forcing."""
    means = []
    for question, answer in ANSWERS:
        prompt = policy.prompt(
            [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
        )
        means.append(fmean(policy.score(prompt, (*policy.ids(answer), policy.stop))))
    return fmean(means)
