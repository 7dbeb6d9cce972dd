"""Versions change under load on the real engine: no request fails, each is one version's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import EngineSettings
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.records import (
    Chunk,
    Generation,
    PolicyKind,
    PolicyRef,
    Sampling,
    Served,
    VersionSpan,
    new_id,
)
from tests.tiny_model import make_adapter

PROMPT = tuple(range(30, 50))


async def converse(
    pool: EnginePool, lineage_id: UUID, session: str, enough: asyncio.Event
) -> list[tuple[PolicyRef, list[Chunk]]]:
    """Ask again and again until told that it is enough."""
    replies = []
    while not enough.is_set():
        rid = new_id().hex
        request = pool.generate(
            lambda policy, rid=rid: Generation(  # type: ignore[misc]
                rid=rid,
                input_ids=PROMPT,
                sampling=Sampling(temperature=1.0, max_tokens=24),
                policy=policy,
            ),
            lineage_id,
            session,
        )
        async with request as stream:
            chunks = [chunk async for chunk in stream]
            replies.append((stream.policy, chunks))
    return replies


@pytest.mark.sglang
async def test_versions_change_under_load_without_a_failed_request(
    sglang_url: str, tmp_path: Path
) -> None:
    lineage = new_id()
    versions = [PolicyRef(lineage_id=lineage, version=0, kind=PolicyKind.BASE)]
    versions += [
        PolicyRef(
            lineage_id=lineage,
            version=version,
            kind=PolicyKind.LORA,
            uri=str(make_adapter(tmp_path / f"v{version}", seed=version)),
        )
        for version in (1, 2, 3)
    ]
    live = {lineage: Served(live=versions[0])}

    async def told() -> Mapping[UUID, Served]:
        return dict(live)

    engine = SglangEngine(EngineSettings(name="real", url=sglang_url))
    pool = EnginePool([engine], told, poll_s=60)
    follower = asyncio.create_task(pool.follow())
    enough = asyncio.Event()
    sessions = [
        asyncio.create_task(converse(pool, lineage, f"s{number}", enough)) for number in range(3)
    ]
    for before, after in pairwise(versions):
        async with asyncio.timeout(60):
            while before.version not in pool.in_flight().get(lineage.hex, {}):
                await asyncio.sleep(0.01)
            live[lineage] = Served(live=after)
            pool.poke()
            while set(pool.in_flight().get(lineage.hex, {})) != {after.version}:
                await asyncio.sleep(0.01)
        # Drained here, so nothing waits for it in the engine.
        await engine.unload(before)
    enough.set()
    replies = [reply for session in await asyncio.gather(*sessions) for reply in session]

    assert {policy.version for policy, _ in replies} == {0, 1, 2, 3}
    assert pool.in_flight() == {}
    assert (await engine.status()).adapters & {p.adapter for p in versions} == {versions[3].adapter}
    for version in versions:
        _, chunks = next(reply for reply in replies if reply[0] == version)
        ids = [token for chunk in chunks for token in chunk.ids]
        logprobs = [value for chunk in chunks for value in chunk.logprobs]
        await engine.load(version)
        scores = await engine.score([*PROMPT, *ids], len(PROMPT), version)
        assert scores == pytest.approx(logprobs, abs=1e-4)
        finish = chunks[-1].finish
        assert finish is not None
        assert finish.spans == (VersionSpan(version.version, 0, len(ids)),)
        await engine.unload(version)
    assert all(chunks[-1].finish is not None for _, chunks in replies)

    follower.cancel()
    with suppress(asyncio.CancelledError):
        await follower
    await pool.close()
