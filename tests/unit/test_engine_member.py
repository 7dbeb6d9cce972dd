from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from gateway.engine.base import EngineStatus
from gateway.engine.member import Member
from gateway.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import Chunk, Generation, PolicyKind, PolicyRef

LINEAGE = UUID(int=7)
UP = EngineStatus(ready=True, model="tiny")


def lora(version: int) -> PolicyRef:
    return PolicyRef(lineage_id=LINEAGE, version=version, kind=PolicyKind.LORA, uri=f"/v{version}")


class ScriptedEngine:
    """Says what the test tells it to."""

    name = "scripted"

    def __init__(self) -> None:
        self.says: EngineStatus | EngineError = UP
        self.loading: EngineError | None = None
        self.loaded: list[PolicyRef] = []

    async def status(self) -> EngineStatus:
        if isinstance(self.says, EngineError):
            raise self.says
        return self.says

    async def load(self, policy: PolicyRef) -> float:
        self.loaded.append(policy)
        if self.loading is not None:
            raise self.loading
        return 1.0

    async def unload(self, policy: PolicyRef) -> None:
        raise AssertionError("the pool never unloads")

    def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        raise AssertionError("nothing is asked")

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        raise AssertionError("nothing is asked")

    async def close(self) -> None:
        """Nothing is open."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_busy_engine_may_be_silent_twice() -> None:
    engine = ScriptedEngine()
    member = Member(engine)
    await member.sync({})
    engine.says = EngineTimeout("slow", engine="scripted")
    for healthy in (True, True, False):
        await member.sync({})
        assert member.healthy is healthy
    engine.says = UP
    await member.sync({})
    engine.says = EngineTimeout("slow", engine="scripted")
    await member.sync({})
    assert member.healthy


async def test_an_engine_that_refuses_connections_is_down_at_once() -> None:
    engine = ScriptedEngine()
    member = Member(engine)
    await member.sync({})
    engine.says = EngineUnavailable("refused", engine="scripted")
    await member.sync({})
    assert not member.healthy
    assert member.describe()["error"] == "refused"
    assert not member.may_serve_soon(lora(1))


async def test_a_version_that_cannot_be_loaded_is_tried_less_and_less_often() -> None:
    engine, clock = ScriptedEngine(), Clock()
    engine.loading = EngineRejected("bad file", engine="scripted")
    member = Member(engine, clock)
    tries = []
    for second in range(100):
        clock.now = 100.0 + second
        before = len(engine.loaded)
        await member.sync({LINEAGE: lora(1)})
        if len(engine.loaded) > before:
            tries.append(second)
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91]
    assert member.serving == {}
    assert not member.may_serve_soon(lora(1))
    assert member.may_serve_soon(lora(2))
    # Another version does not wait for the first one's next try.
    engine.loading = None
    await member.sync({LINEAGE: lora(2)})
    assert member.serving == {LINEAGE: lora(2)}
    assert member.describe()["failing"] == {}


async def test_the_newest_earlier_adapter_is_adopted_and_no_later_one() -> None:
    engine = ScriptedEngine()
    engine.loading = EngineRejected("bad file", engine="scripted")
    stem = f"{LINEAGE.hex}-v"
    engine.says = EngineStatus(
        ready=True,
        adapters=frozenset({f"{stem}2", f"{stem}10", f"{stem}12", f"{stem}x", "someone-v11"}),
    )
    member = Member(engine)
    await member.sync({LINEAGE: lora(11)})
    assert member.serving[LINEAGE].version == 10
    assert engine.loaded == [lora(11)]


async def test_full_weights_serve_where_the_engine_reports_them() -> None:
    engine = ScriptedEngine()
    policy = PolicyRef(lineage_id=LINEAGE, version=4, kind=PolicyKind.FULL, uri="/v4")
    member = Member(engine)
    engine.says = EngineStatus(ready=True, weight_version=f"{LINEAGE.hex}-v4")
    await member.sync({LINEAGE: policy})
    assert (member.serving, engine.loaded) == ({LINEAGE: policy}, [])
    engine.loading = EngineUnavailable("restarting", engine="scripted")
    engine.says = EngineStatus(ready=True, weight_version="default")
    await member.sync({LINEAGE: policy})
    assert (member.serving, engine.loaded) == ({}, [policy])
