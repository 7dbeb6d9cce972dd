"""Settings that change at run time, and the classification rules that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import yaml

from gateway.classify import Awareness
from gateway.config import SessionSettings, Settings, load
from gateway.errors import ConfigError
from gateway.store.awareness import AWARENESS, AwarenessFollower, overlaid
from gateway.store.database import Database
from gateway.store.settings import SETTINGS_CHANNEL, SettingStore


@asynccontextmanager
async def following(
    database: Database, file: Path | None = None, look_s: float = 0.02
) -> AsyncIterator[tuple[Awareness, AwarenessFollower]]:
    def read() -> SessionSettings:
        return load(Settings).session_awareness if file else SessionSettings()

    awareness = Awareness(read())
    follower = AwarenessFollower(awareness, database, file=file, read=read, look_s=look_s)
    task = asyncio.create_task(follower.run())
    try:
        yield awareness, follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(awareness: Awareness, *patterns: str) -> None:
    async with asyncio.timeout(120):
        while awareness.settings.auxiliary_patterns != patterns:
            await asyncio.sleep(0.01)


def write(file: Path, **section: object) -> None:
    """In one go, so that nobody reads half of it."""
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump({AWARENESS: section}))
    new.replace(file)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nextstate.yaml"
    write(path, auxiliary_patterns=["one"])
    monkeypatch.setenv("NEXTSTATE_CONFIG", str(path))
    return path


async def test_a_setting_counts_its_changes_and_is_announced(database: Database) -> None:
    store = SettingStore(database)
    told: list[str] = []
    await database.listen(SETTINGS_CHANNEL, told.append)
    assert await store.get("x") is None
    assert await store.put("x", {"a": 1}) == 1
    assert await store.put("x", {"a": 2}) == 2
    stored = await store.get("x")
    assert stored is not None
    assert (stored.value, stored.version) == ({"a": 2}, 2)
    # Two who saw the same version do not undo each other's change.
    assert await store.put("x", {"a": 3}, seen=2) == 3
    assert await store.put("x", {"a": 4}, seen=2) is None
    assert await store.put("x", {"a": 4}, seen=0) is None
    assert await store.put("y", {}, seen=0) == 1
    async with asyncio.timeout(120):
        while len(told) < 4:
            await asyncio.sleep(0.01)
    assert told == ["x", "x", "x", "y"]


async def test_rules_follow_their_file(database: Database, file: Path) -> None:
    async with following(database, file) as (awareness, _):
        assert awareness.settings.auxiliary_patterns == ("one",)
        write(file, auxiliary_patterns=["two", "three"], session_timeout=60)
        await until(awareness, "two", "three")
        assert awareness.settings.session_timeout_s == 60


@pytest.mark.parametrize(
    "wrong", [{"auxiliary_patterns": ["("]}, {"session_timeout": -1}, {"nonsense": 1}]
)
async def test_wrong_rules_leave_the_old_ones_in_force(
    database: Database, file: Path, wrong: dict[str, object]
) -> None:
    async with following(database, file) as (awareness, _):
        with structlog.testing.capture_logs() as logs:
            write(file, **wrong)
            async with asyncio.timeout(120):
                while not logs:
                    await asyncio.sleep(0.01)
        [line] = logs
        assert (line["event"], line["log_level"]) == ("session_rules_kept", "error")
        assert awareness.settings.auxiliary_patterns == ("one",)
        write(file, auxiliary_patterns=["right again"])
        await until(awareness, "right again")


async def test_rules_are_read_again_when_told_to(database: Database, file: Path) -> None:
    async with following(database, file, look_s=600) as (awareness, follower):
        write(file, auxiliary_patterns=["two"])
        follower.reload()
        await until(awareness, "two")


async def test_what_postgres_says_stands_over_the_file_in_every_process(
    database: Database, file: Path
) -> None:
    store = SettingStore(database)
    await store.put(AWARENESS, {"auxiliary_patterns": ["before"]})
    async with (
        following(database, file, 600) as (one, _),
        following(database, file, 600) as (
            other,
            follower,
        ),
    ):
        for awareness in (one, other):
            await until(awareness, "before")
        await store.put(AWARENESS, {"auxiliary_patterns": ["after"]})
        for awareness in (one, other):
            await until(awareness, "after")
        await store.put(AWARENESS, {"cache_turns": 1})
        await store.put(AWARENESS, {"trainable_patterns": ["main"]})
        await until(one, "one")
        assert one.settings.trainable_patterns == ("main",)
        follower.reload()
        await until(other, "one")


def test_only_what_can_change_at_run_time_is_taken_from_postgres() -> None:
    given = SessionSettings(cache_turns=7)
    assert overlaid(given, {"session_timeout_s": 5}).session_timeout_s == 5
    assert overlaid(given, {"session_timeout_s": 5}).cache_turns == 7
    assert overlaid(given, {"session_timeout": 5}).session_timeout_s == 5
    for wrong in ({"cache_turns": 1}, {"session_timeout_s": "soon"}):
        with pytest.raises(ConfigError):
            overlaid(given, wrong)
