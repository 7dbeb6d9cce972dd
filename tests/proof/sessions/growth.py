"""A long session of an agent with a big prompt, and what each column of the store holds of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from gateway.config import ServerSettings, Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.proof.sessions.talker import KEEPING
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_models import write_model

#: Words of the model's tokenizer, so that a text has about as many ids as words.
_WORDS = (
    "The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "You", "are", "a",
    "helpful", "assistant", "What", "is", "the", "capital", "of", "France", "Thanks", "good",
)  # fmt: skip
_CALL = '<tool_call>{"name": "tool_0", "arguments": {"city": "Oslo"}}</tool_call>'
PROMPT_BYTES, TOOLS_BYTES = 40_000, 16_000


@dataclass(kw_only=True)
class Grown:
    """Bytes. `text` is all that was ever said, counted once; `sent` every request's body.

    `columns` are sums of `pg_column_size` and `whole` of `octet_length` of the same as text.
    """

    turns: int
    text: int
    sent: int
    ids: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)

    def table(self) -> str:
        lines = [
            f"{self.turns} turns, {self.text:,} bytes of text, {self.sent:,} bytes sent",
            f"{self.ids:,} token ids seen by the last turn, its reply included",
            f"{'column':<24}{'stored':>12}{'as text':>12}",
        ]
        for name, stored in sorted(self.columns.items(), key=lambda item: -item[1]):
            lines.append(f"{name:<24}{stored:>12,}{self.whole[name]:>12,}")
        lines.append(f"{'all columns':<24}{sum(self.columns.values()):>12,}")
        lines += [f"table {name:<18}{size:>12,}" for name, size in self.tables.items()]
        total = sum(self.tables.values())
        lines.append(f"{'with indexes and rest':<24}{total:>12,} = {total / self.text:.1f} x text")
        return "\n".join(lines)


@asynccontextmanager
async def roomy_gateway(database_url: str, home: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model has room for a long session, and whose template shows tools."""
    model = write_model(home / "model", KEEPING, max_position_embeddings=200_000)
    async with FakeSglang(model_path=model, chunk_tokens=64) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, model, engine.url, home)
        values["gateway"] = ServerSettings(port=values["gateway"].port)
        settings = Settings(**values)
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


def words(rng: Random, size: int) -> str:
    """Text of about `size` bytes that does not repeat itself."""
    parts: list[str] = []
    length = 0
    while length < size:
        parts.append(rng.choice(_WORDS))
        length += len(parts[-1]) + 1
    return " ".join(parts)


async def grown(gateway: Gateway, turns: int) -> Grown:
    """Play the session: each reply calls a tool, each request brings its result and a remark."""
    rng = Random(1)
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": words(rng, TOOLS_BYTES // 8),
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        for number in range(8)
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": words(rng, PROMPT_BYTES)},
        {"role": "user", "content": words(rng, 200)},
    ]
    sent = 0
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for _ in range(turns):
            gateway.says(words(rng, 60) + _CALL)
            body = {"model": "tiny", "messages": messages, "tools": tools}
            sent += len(json.dumps(body))
            async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
                reply = await answer.json()
                assert answer.status == 200, reply
            message = reply["choices"][0]["message"]
            [call] = message["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": words(rng, 150)}
            messages += [message, result]
    text = len(json.dumps([messages[:-1], tools]))
    return await _measured(gateway, Grown(turns=turns, text=text, sent=sent))


async def _measured(gateway: Gateway, found: Grown) -> Grown:
    columns = await gateway.rows(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name IN ('turns', 'next_states', 'echoes')"
    )
    for column in columns:
        table, name = column["table_name"], column["column_name"]
        [size] = await gateway.rows(
            f'SELECT coalesce(sum(pg_column_size("{name}")), 0) AS stored,'
            f' coalesce(sum(octet_length("{name}"::text)), 0) AS whole FROM "{table}"'
        )
        if size["stored"] > 4 * found.turns:
            found.columns[f"{table}.{name}"] = size["stored"]
            found.whole[f"{table}.{name}"] = size["whole"]
    sizes = await gateway.rows(
        "SELECT relname, pg_total_relation_size(oid) AS size FROM pg_class"
        " WHERE relkind = 'r' AND relname IN ('turns', 'next_states', 'echoes', 'judgements',"
        " 'sessions') ORDER BY 2 DESC"
    )
    found.tables = {row["relname"]: row["size"] for row in sizes}
    [last] = await gateway.rows(
        "SELECT prompt_len + completion_len AS ids FROM turns ORDER BY id DESC LIMIT 1"
    )
    found.ids = last["ids"]
    return found
