"""What each session of the proof does, from its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

#: Chat and Messages twice: they are what most agents speak.
DIALECTS = (
    "chat", "messages", "responses", "chat", "responses by id", "messages", "completions"
)  # fmt: skip
TEMPLATES = ("keeping", "dropping", "plain")

#: How many tokens a reply may have where it is not to be cut.
ROOM = 64

_ASKED = (
    "The quick brown fox?",
    "What is the capital of France?",
    "No, try again.",
    "na\u00efve caf\u00e9, \u00bfno?",
    "\u65e5\u672c\u8a9e\u3067\u304a\u9858\u3044",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600\U0001f3fd",
    "\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    "e\u0301 is not \u00e9; \u1e9e \u00df \ufb01",
    "Write <think> and </tool_call> as they are.",
    "  spaces \t and\nlines\r\n\n ",
    '{"name": "look", "arguments": {}}',
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 \ud55c\uae00",
)
_RESULTS = ("a fox", "[]", '{"legs": 4}', "\u2603 snow", "error: no such animal", "1\n2\n3")
_STOPS = (["lazy"], ["dog."], ["\u00e9"], ["animal", "Oslo"], [" fox"], ["</think>"])


@dataclass(frozen=True, kw_only=True)
class Turn:
    """`retry` sends the request once more, as a client whose reply was lost does."""

    ask: str
    results: tuple[str, ...]
    sampling: dict[str, Any]
    stream: bool
    thinking: bool
    tools: bool
    parallel: bool
    forced: bool
    choices: int
    edit: bool
    retry: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    number: int
    dialect: str
    template: str
    turns: tuple[Turn, ...]


def plan(number: int, turns: int, *, end_id: int | None = None) -> Plan:
    """A session of so many turns. `end_id` is made likely in every other turn where it is given,
    for a model that hardly ever ends its replies by itself.
    """
    rng = Random(f"session {number}")
    dialect = DIALECTS[number % len(DIALECTS)]
    tools = rng.random() < 0.75
    always_streams = rng.choice((True, False, None))
    thinking = rng.choice((True, False, None))
    temperature = rng.choice((None, None, None, 1, 1.0, 1.0, 0.7, 1.3, 0.3))
    parallel = rng.random() < 0.75
    found = []
    for index in range(turns):
        sampling: dict[str, Any] = {"max_tokens": ROOM}
        if temperature is not None:
            sampling["temperature"] = temperature
        chance = rng.random()
        if chance < 0.14:
            sampling["max_tokens"] = rng.randint(1, 8)
        elif chance < 0.26:
            sampling["stop"] = rng.choice(_STOPS)
        elif chance < 0.29:
            sampling["temperature"] = 0
        elif chance < 0.32:
            sampling["top_p"] = 0.9
        elif chance < 0.34 and dialect in ("chat", "completions"):
            sampling["presence_penalty"] = 0.5
        if end_id is not None and index % 2 == 0 and dialect == "chat":
            sampling["logit_bias"] = {str(end_id): 9}
        found.append(
            Turn(
                ask=rng.choice(_ASKED),
                results=tuple(rng.choices(_RESULTS, k=32)),
                sampling=sampling,
                stream=rng.random() < 0.5 if always_streams is None else always_streams,
                thinking=rng.random() < 0.5 if thinking is None else thinking,
                tools=tools,
                parallel=parallel,
                forced=tools and dialect != "completions" and rng.random() < 0.02,
                choices=2 if dialect == "chat" and rng.random() < 0.05 else 1,
                edit=index > 1 and rng.random() < 0.05,
                retry=rng.random() < 0.03,
            )
        )
    return Plan(
        number=number,
        dialect=dialect,
        template=TEMPLATES[number % len(TEMPLATES)],
        turns=tuple(found),
    )
