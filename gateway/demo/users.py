"""Simulated users: each wants short answers, and shows it only by what they say next.

A user talks through the official `openai` client with nothing changed but the base URL and the
key. Nothing here scores a reply for the trainer; the judge reads the reactions like anyone's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam

#: What a content user says.
CONTENT: tuple[str, ...] = (
    "Thanks, that is what I needed.",
    "Perfect, thank you!",
    "Thank you, that helps.",
    "Great, thanks a lot.",
    "Thanks! Short and clear.",
    "That's perfect, thanks.",
)

#: What a user says who got more than they wanted.
IMPATIENT: tuple[str, ...] = (
    "Shorter, please.",
    "That is too long. Please make it shorter.",
    "Too long for me, please shorten it.",
    "Please make it shorter.",
    "Can you make that shorter?",
    "That's too long, say it more briefly.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One person. A reply pleases them if it came to its end within `words` words.

    `persistence` is the chance that they wait for another whole answer after a complaint.
    """

    name: str
    words: int
    system: str
    persistence: float = 0.2

    def pleased(self, reply: str, finish_reason: str | None) -> bool:
        return finish_reason == "stop" and 0 < len(reply.split()) <= self.words


_SENTENCE = "Answer in one short sentence."
_SENTENCES = "You are a friendly assistant. Answer in one or two sentences."
_SHORT = "You are a helpful assistant. Keep your answers short."

#: The base model pleases each of them 15 to 40 % of the time: a preference that is never met
#: teaches nothing. The stricter the user, the plainer the instructions of their agent.
USERS: tuple[User, ...] = tuple(
    User(name=f"user-{number}", words=words, system=system)
    for number, (words, system) in enumerate(
        (
            (25, _SENTENCE),
            (25, _SENTENCE),
            (25, _SENTENCE),
            (35, _SENTENCES),
            (35, _SENTENCES),
            (45, _SHORT),
            (45, _SHORT),
            (45, _SHORT),
        ),
        start=1,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the users' clients ask. `closing_tokens` bounds the answer to a goodbye."""

    model: str
    temperature: float = 0.8
    max_tokens: int = 64
    closing_tokens: int = 12
    timeout_s: float = 120.0


@dataclass(slots=True)
class Tally:
    """What the clients saw; the only things counted outside the database.

    `errors` keeps the kinds of failures that were left after the client's own retries.
    """

    requests: int = 0
    failed: int = 0
    open: int = 0
    errors: list[str] = field(default_factory=list)


async def ask(
    client: AsyncOpenAI,
    messages: Sequence[ChatCompletionMessageParam],
    manner: Manner,
    max_tokens: int,
    tally: Tally,
) -> tuple[str, str | None] | None:
    """One request: the reply's text and finish reason, or None where it failed for good."""
    tally.requests += 1
    try:
        answer = await client.chat.completions.create(
            model=manner.model,
            messages=messages,
            temperature=manner.temperature,
            top_p=1,
            max_tokens=max_tokens,
            timeout=manner.timeout_s,
        )
    except OpenAIError as error:
        tally.failed += 1
        tally.errors.append(type(error).__name__)
        return None
    choice = answer.choices[0]
    return choice.message.content or "", choice.finish_reason


async def converse(
    user: User,
    client: AsyncOpenAI,
    question: str,
    *,
    manner: Manner,
    rng: random.Random,
    tally: Tally,
) -> bool:
    """Ask, react to the answer, perhaps to a second one, and leave.

    A request that fails for good ends the conversation, is counted in `tally` and makes it False.
    """
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": user.system},
        {"role": "user", "content": question},
    ]
    answers = 1 + (rng.random() < user.persistence)
    tally.open += 1
    try:
        for left in reversed(range(answers)):
            reply = await ask(client, messages, manner, manner.max_tokens, tally)
            if reply is None:
                return False
            pleased = user.pleased(*reply)
            messages.append({"role": "assistant", "content": reply[0]})
            messages.append(
                {"role": "user", "content": rng.choice(CONTENT if pleased else IMPATIENT)}
            )
            if pleased or not left:
                break
        return await ask(client, messages, manner, manner.closing_tokens, tally) is not None
    finally:
        tally.open -= 1
