"""What the largest requests cost: those that are refused, and the longest that is served."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from gateway.resolve import prefixes, seed
from gateway.store.wanted import Wanted
from tests.fixtures_gateway import Gateway
from tests.proof.sessions.growth import roomy_gateway

OTHERS = 20_000
LONGEST = 4_095

#: More turns of the same tenant, each with a chain of its own.
_FILL = """
INSERT INTO turns SELECT filled.* FROM generate_series(1, $1) AS number, turns t
CROSS JOIN LATERAL jsonb_populate_record(NULL::turns, to_jsonb(t) || jsonb_build_object(
    'id', gen_random_uuid(), 'chain_hash', '\\x' || encode(sha256(number::text::bytea), 'hex')
)) AS filled
"""


async def test_large_requests(
    database_url: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    hello = {"role": "user", "content": "Hello"}
    said = {"role": "assistant", "content": "Hi"}
    async with roomy_gateway(database_url, tmp_path) as gateway:
        gateway.says("Hi")
        assert (await timed(gateway, [hello]))[0] == 200
        await gateway.services.database.execute(_FILL, OTHERS)
        await gateway.services.database.execute("ANALYZE turns")
        lines = [f"{OTHERS:,} turns of the tenant are stored"]
        for count in (11, 101, 1_001, LONGEST, 10_001):
            gateway.engine.replies.clear()
            gateway.says("Hi")
            status, took = await timed(gateway, [hello, said] * (count // 2) + [hello])
            assert status == (200 if count <= LONGEST else 400)
            lines.append(f"{count:>7,} messages: {status}, {took:7.1f} ms")
        status, took = await timed(gateway, [{**hello, "content": "a" * 10_000_000}])
        assert status == 413
        lines.append(f"     10 MB in one: {status}, {took:7.1f} ms")
        [tenant] = await gateway.rows("SELECT tenant_id FROM turns LIMIT 1")
        keys = prefixes([hello, said] * (LONGEST // 2), seed(tenant["tenant_id"], "tiny"))
        wanted = Wanted(chains=[each.hash for each in keys])
        started = time.perf_counter()
        await gateway.services.turns.find_candidates(tenant["tenant_id"], wanted)
        took = (time.perf_counter() - started) * 1e3
        lines.append(f"one look-up of {len(keys):,} prefixes: {took:.1f} ms")
    say("\n" + "\n".join(lines) + "\n")


async def timed(gateway: Gateway, messages: list[Any]) -> tuple[int, float]:
    """(status, milliseconds) of a request that is encoded beforehand."""
    body = json.dumps({"model": "tiny", "messages": messages}).encode()
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        started = time.perf_counter()
        async with http.post(f"{gateway.url}/v1/chat/completions", data=io.BytesIO(body)) as answer:
            await answer.read()
        return answer.status, (time.perf_counter() - started) * 1e3
