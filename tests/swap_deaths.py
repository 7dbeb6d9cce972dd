"""A trainer dies in the middle of a swap of whole weights: what must be true then, and after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.engine.chunks import weight_version
from gateway.records import PolicyRef
from tests.swap_victim import Place, killed, lead
from tests.whole_weights import TOKENS, Town


async def dies_and_is_followed(world: Town, database_url: str, home: Path, point: str) -> None:
    """Kill a trainer at a point under load, look at what is left, and let the next one lead."""
    policy = await world.candidate()
    before = await world.policies.live_of(world.lineage)
    await world.leadership.release()
    place = Place(
        database_url=database_url,
        lineage=world.lineage.hex,
        model=str(world.model),
        engines={name: fake.url for name, fake in zip(("one", "two"), world.fakes, strict=True)},
    )
    for fake in world.fakes:
        fake.faults.update_delay_s = 0.3
    async with world.talking():
        await killed(point, place, home)
        await definite(world, before, policy)
        assert (await lead(place)).version == policy.version
        await world.serves(policy.version)
    assert [fake.weights for fake in world.fakes] == [policy.uri] * 2
    assert [fake.pause for fake in world.fakes] == [None] * 2
    assert await world.states() == [(0, "retired"), (1, "live")]
    # Nobody was cut off or asked twice, and each token's version is told.
    for ids, finish in world.replies:
        assert (len(ids), finish.detail) == (TOKENS, None)
        ends = [span.end for span in finish.spans]
        assert [span.start for span in finish.spans] == [0, *ends[:-1]]
        assert ends[-1] == TOKENS
        assert {span.version for span in finish.spans} <= {0, 1}


async def definite(world: Town, before: PolicyRef, policy: PolicyRef) -> None:
    """Wait until each engine serves one version, has its weights, and the record knows of it."""
    uris = {before.version: str(world.model), policy.version: policy.uri}

    async def settled() -> bool:
        served = (await world.policies.served())[world.lineage]
        told = {one["name"]: one["serving"].get(world.lineage.hex) for one in world.pool.describe()}
        for name, fake in zip(("one", "two"), world.fakes, strict=True):
            allowed = {served.live.version}
            if served.coming is not None and name in served.proved:
                allowed.add(served.coming.version)
            version = told[name]
            if version not in allowed or fake.weights != uris[version] or fake.pause is not None:
                return False
            at = policy if version == policy.version else before
            if version and fake.told_version != weight_version(at):
                return False
        return True

    async with asyncio.timeout(120):
        while not await settled():
            await asyncio.sleep(0.02)
