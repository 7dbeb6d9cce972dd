from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from structlog.testing import capture_logs

from gateway.engine.base import EngineStatus, Take
from gateway.engine.member import NO_ADAPTERS, Member
from gateway.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import Chunk, Generation, PolicyKind, PolicyRef, Served

LINEAGE = UUID(int=7)
UP = EngineStatus(ready=True, model="tiny", supports_lora=True)


def lora(version: int) -> PolicyRef:
    return PolicyRef(lineage_id=LINEAGE, version=version, kind=PolicyKind.LORA, uri=f"/v{version}")


class ScriptedEngine:
    """Says what the test tells it to."""

    name = "scripted"

    def __init__(self) -> None:
        self.says: EngineStatus | EngineError = UP
        self.loading: EngineError | None = None
        self.loaded: list[PolicyRef] = []
        self.resumed = 0

    async def status(self) -> EngineStatus:
        if isinstance(self.says, EngineError):
            raise self.says
        return self.says

    async def load(self, policy: PolicyRef) -> float:
        self.loaded.append(policy)
        if self.loading is not None:
            raise self.loading
        return 1.0

    async def resume(self) -> None:
        self.resumed += 1

    async def unload(self, policy: PolicyRef) -> None:
        raise AssertionError("the pool never unloads")

    def generate(self, request: Generation) -> AsyncGenerator[Chunk, Take | None]:
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
        await member.sync({LINEAGE: Served(live=lora(1))})
        if len(engine.loaded) > before:
            tries.append(second)
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91]
    assert member.serving == {}
    assert not member.may_serve_soon(lora(1))
    assert member.may_serve_soon(lora(2))
    # Another version does not wait for the first one's next try.
    engine.loading = None
    await member.sync({LINEAGE: Served(live=lora(2))})
    assert member.serving == {LINEAGE: lora(2)}
    assert member.describe()["failing"] == {}


async def test_an_engine_that_takes_no_adapters_is_given_none_until_it_does() -> None:
    engine = ScriptedEngine()
    engine.says = EngineStatus(ready=True, model="tiny")
    member = Member(engine)
    base = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE)
    await member.sync({LINEAGE: Served(live=base)})
    assert member.serving == {LINEAGE: base}
    with capture_logs() as told:
        for _ in range(3):
            await member.sync({LINEAGE: Served(live=lora(1), canary=lora(2), share=0.5)})
    assert (engine.loaded, member.trying) == ([], {})
    assert not member.may_serve_soon(lora(1))
    assert member.describe()["failing"] == {
        f"{LINEAGE.hex}-v1": NO_ADAPTERS, f"{LINEAGE.hex}-v2": NO_ADAPTERS,
    }  # fmt: skip
    # Once for each version, not at each look.
    assert [line["event"] for line in told] == ["engine_without_adapters"] * 2
    # Started anew it takes them, and waits for nothing.
    engine.says = UP
    await member.sync({LINEAGE: Served(live=lora(1))})
    assert (engine.loaded, member.serving) == ([lora(1)], {LINEAGE: lora(1)})
    assert member.describe()["failing"] == {}


async def test_the_newest_earlier_adapter_is_adopted_and_no_later_one() -> None:
    engine = ScriptedEngine()
    engine.loading = EngineRejected("bad file", engine="scripted")
    stem = f"{LINEAGE.hex}-v"
    engine.says = EngineStatus(
        ready=True,
        supports_lora=True,
        adapters=frozenset({f"{stem}2", f"{stem}10", f"{stem}12", f"{stem}x", "someone-v11"}),
    )
    member = Member(engine)
    await member.sync({LINEAGE: Served(live=lora(11))})
    assert member.serving[LINEAGE].version == 10
    assert engine.loaded == [lora(11)]


async def test_no_version_that_was_undone_is_adopted() -> None:
    engine, stem = ScriptedEngine(), f"{LINEAGE.hex}-v"
    engine.loading = EngineRejected("bad file", engine="scripted")
    engine.says = EngineStatus(
        ready=True, supports_lora=True, adapters=frozenset({f"{stem}9", f"{stem}10"})
    )
    member = Member(engine)
    await member.sync({LINEAGE: Served(live=lora(11), undone=frozenset({10}))})
    assert member.serving[LINEAGE].version == 9


async def test_a_canary_is_loaded_beside_the_live_version_and_goes_with_its_trial() -> None:
    engine, stem = ScriptedEngine(), f"{LINEAGE.hex}-v"
    member = Member(engine)
    await member.sync({LINEAGE: Served(live=lora(1))})
    engine.says = EngineStatus(ready=True, supports_lora=True, adapters=frozenset({f"{stem}1"}))
    await member.sync({LINEAGE: Served(live=lora(1), canary=lora(2), share=0.5)})
    assert engine.loaded == [lora(1), lora(2)]
    engine.says = EngineStatus(
        ready=True, supports_lora=True, adapters=frozenset({f"{stem}1", f"{stem}2"})
    )
    await member.sync({LINEAGE: Served(live=lora(1), canary=lora(2), share=0.5)})
    assert (member.serving, member.trying) == ({LINEAGE: lora(1)}, {LINEAGE: lora(2)})
    assert member.describe()["trying"] == {LINEAGE.hex: 2}
    await member.sync({LINEAGE: Served(live=lora(1))})
    assert (member.serving, member.trying) == ({LINEAGE: lora(1)}, {})
    await member.sync({})
    assert (member.serving, member.trying) == ({}, {})


async def test_a_canary_that_cannot_be_loaded_leaves_the_live_version_serving() -> None:
    engine = ScriptedEngine()
    engine.says = EngineStatus(
        ready=True, supports_lora=True, adapters=frozenset({f"{LINEAGE.hex}-v1"})
    )
    member = Member(engine)
    engine.loading = EngineRejected("bad file", engine="scripted")
    await member.sync({LINEAGE: Served(live=lora(1), canary=lora(2), share=0.5)})
    assert (member.serving, member.trying) == ({LINEAGE: lora(1)}, {})
    assert member.healthy


async def test_full_weights_serve_where_the_engine_reports_them() -> None:
    engine = ScriptedEngine()
    policy = PolicyRef(lineage_id=LINEAGE, version=4, kind=PolicyKind.FULL, uri="/v4")
    member = Member(engine)
    engine.says = EngineStatus(ready=True, weight_version=f"{LINEAGE.hex}-v4")
    await member.sync({LINEAGE: Served(live=policy)})
    assert (member.serving, engine.loaded) == ({LINEAGE: policy}, [])
    engine.loading = EngineUnavailable("restarting", engine="scripted")
    engine.says = EngineStatus(ready=True, weight_version="default")
    await member.sync({LINEAGE: Served(live=policy)})
    assert (member.serving, engine.loaded) == ({}, [policy])


async def test_only_whole_weights_leave_an_engine_paused_and_it_is_freed_now_and_then() -> None:
    engine, clock = ScriptedEngine(), Clock()
    engine.says = EngineStatus(
        ready=True, supports_lora=True, adapters=frozenset({f"{LINEAGE.hex}-v1"}), paused=True
    )
    member = Member(engine, clock)
    await member.sync({LINEAGE: Served(live=lora(1))})
    assert engine.resumed == 0
    whole = PolicyRef(lineage_id=LINEAGE, version=4, kind=PolicyKind.FULL, uri="/v4")
    engine.says = EngineStatus(ready=True, weight_version=f"{LINEAGE.hex}-v4", paused=True)
    # Somebody is at it.
    await member.sync({LINEAGE: Served(live=whole)}, {"scripted"})
    assert engine.resumed == 0
    for second, resumed in ((0, 1), (1, 1), (29, 1), (30, 2)):
        clock.now = 100.0 + second
        await member.sync({LINEAGE: Served(live=whole)})
        assert engine.resumed == resumed
    assert member.serving == {LINEAGE: whole}


async def test_what_is_coming_serves_where_it_was_proved_and_is_replaced_elsewhere() -> None:
    live, coming = (
        PolicyRef(lineage_id=LINEAGE, version=version, kind=PolicyKind.FULL, uri=f"/v{version}")
        for version in (4, 5)
    )
    for proved, serving, loaded in (({"scripted"}, coming, []), ({"other"}, live, [live])):
        engine = ScriptedEngine()
        engine.says = EngineStatus(ready=True, weight_version=f"{LINEAGE.hex}-v5")
        member = Member(engine)
        await member.sync({LINEAGE: Served(live=live, coming=coming, proved=frozenset(proved))})
        assert (member.serving, engine.loaded) == ({LINEAGE: serving}, loaded)


async def test_the_base_of_a_lineage_of_whole_weights_is_what_an_engine_starts_with() -> None:
    base = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.FULL, uri="/base")
    for told, loaded in (("default", []), (f"{LINEAGE.hex}-v0", []), ("in-doubt", [base])):
        engine = ScriptedEngine()
        engine.says = EngineStatus(ready=True, weight_version=told)
        member = Member(engine)
        await member.sync({LINEAGE: Served(live=base)})
        assert (member.serving, engine.loaded) == ({LINEAGE: base}, loaded)
