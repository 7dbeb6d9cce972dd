"""A gateway to be fuzzed: its engine answers at once, in every form that replies have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.fixtures_gateway import Gateway, fake_gateway
from tests.fuzz.bodies import MODEL, Valid, valid
from tests.fuzz.cases import case
from tests.fuzz.wire import Tally, run, send
from tests.unit.chat_models import REASONING, write_model

_REPLIES = (
    "The lazy dog.",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Öslo"}}\n</tool_call>',
    '<think>\nHm.\n</think>\n\n{"city": "Paris", "days": 2}',
    '<tool_call>\n{"name": "get_weather", "arg',
)


@asynccontextmanager
async def fuzz_gateway(database_url: str, home: Path) -> AsyncIterator[Gateway]:
    model = write_model(home / "model", REASONING)
    async with fake_gateway(database_url, model, home, chunk_tokens=4) as served:
        served.engine.script = lambda body: any_reply(served, body)
        yield served


async def fuzzed(gateway: Gateway, seed: int, numbers: Iterable[int]) -> Tally:
    """Send the cases of these numbers, then make sure that every route still serves."""
    requests = await _valid(gateway)
    port, key = gateway.services.settings.gateway.port, gateway.keys.agent
    tally = await run(port, (case(number, seed, requests, key) for number in numbers))
    if gateway.engine.crashed:
        tally.complaints.append("a token id that the model does not have reached the engine")
    tally.complaints += await _left_unwell(gateway)
    served = [UUID(turn) for turn in tally.turns]
    [found] = await gateway.rows("SELECT count(*) FROM turns WHERE id = ANY($1)", served)
    if found["count"] < len(served):
        tally.complaints.append(f"of {len(served)} turns {found['count']} are stored")
    return tally


async def _left_unwell(gateway: Gateway) -> list[str]:
    """Complaints about what no longer works, and about requests that are still running."""
    said = []
    async with gateway.client() as client:
        chat = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Are you well?"}]
        )
        response = await client.responses.create(model=MODEL, input="Are you well?")
        if not chat.choices[0].finish_reason or response.status not in ("completed", "incomplete"):
            said.append("a plain request has no end")
    async with asyncio.timeout(60):
        while gateway.services.pool.in_flight():
            await asyncio.sleep(0.02)
    # What a test asserts of its tens of thousands of requests is not what they were.
    gateway.engine.requests.clear()
    return said


async def _valid(gateway: Gateway) -> Sequence[Valid]:
    """The valid requests; some read, judge or end what was served here."""
    async with gateway.client() as client:
        raw = await client.responses.with_raw_response.create(model=MODEL, input="Hello.")
    turn = UUID(raw.headers["x-nextstate-turn-id"])
    return valid(turn, UUID(raw.headers["x-nextstate-session-id"]))


def any_reply(gateway: Gateway, body: dict[str, Any]) -> Sequence[int]:
    tokenizer = gateway.services.tokenizer
    text = _REPLIES[sum(body["input_ids"]) % len(_REPLIES)]
    return [*tokenizer.encode(text), tokenizer.facts.stop_token_ids[0]]


__all__ = ["any_reply", "fuzz_gateway", "fuzzed", "send"]
