"""Ask the fact questions aside, at temperature 0. What was answered is read back from Postgres."""

from __future__ import annotations

import asyncio

from openai import AsyncOpenAI, OpenAIError

from gateway.demo.questions import FACTS
from gateway.demo.users import Tally

_SYSTEM = "You are a helpful assistant. Keep your answers short."
_TOKENS = 24
_AT_ONCE = 4
_TIMEOUT_S = 120.0


async def ask_facts(client: AsyncOpenAI, model: str, tally: Tally) -> None:
    """Every fact question once, as side turns, which are never trained on.

    Failures are counted in `tally`.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(question: str) -> None:
        async with gate:
            tally.requests += 1
            try:
                await client.chat.completions.create(
                    model=model,
                    messages=[
                        {"role": "system", "content": _SYSTEM},
                        {"role": "user", "content": question},
                    ],
                    temperature=0,
                    max_tokens=_TOKENS,
                    timeout=_TIMEOUT_S,
                    extra_headers={"X-Turn-Type": "side"},
                )
            except OpenAIError as error:
                tally.failed += 1
                tally.errors.append(type(error).__name__)

    async with asyncio.TaskGroup() as group:
        for fact in FACTS:
            group.create_task(one(fact.question))
