"""Children are restarted, stopped as groups, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.errors import StackError
from gateway.local.child import ChildSpec, polled
from gateway.local.leftovers import end_all, left_behind, mark
from gateway.local.supervisor import Backoff, Supervisor

QUICK = Backoff(first_s=0.01, most_s=0.05)


def spec(tmp_path: Path, script: str, **changes: object) -> ChildSpec:
    """A shell script that is ready once it has made the file `ready`."""
    ready = tmp_path / "ready"
    defaults: dict[str, object] = {
        "name": "job",
        "command": lambda: ["sh", "-c", script],
        "ready": lambda: polled(ready.exists, every_s=0.01),
        "ready_within_s": 20.0,
        "environment": {"READY": str(ready)},
        "grace_s": 5.0,
    }
    return ChildSpec(**{**defaults, **changes})  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        await polled(condition, every_s=0.01)


def sleeper(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})


def run_until_up(program: str) -> subprocess.Popen[bytes]:
    """A Python process running `program`, once it has printed `up`."""
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    with process.stdout:
        while not process.stdout.readline().startswith(b"up"):
            assert process.poll() is None
    return process


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    running = Supervisor(tmp_path / "home", backoff=QUICK)
    yield running
    await running.stop()
    assert left_behind(tmp_path / "home") == []


async def test_restarts_what_dies_and_says_why(tmp_path: Path, supervisor: Supervisor) -> None:
    await supervisor.start(spec(tmp_path, 'touch "$READY"; exec sleep 60'))
    state = supervisor.states["job"]
    first = state.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await until(lambda: state.state == "ready" and state.pid not in (None, first))

    assert state.restarts == 1
    assert state.reason == "signal SIGKILL"


async def test_a_death_takes_the_whole_group_along(tmp_path: Path, supervisor: Supervisor) -> None:
    grandchild = tmp_path / "grandchild"
    script = f'sleep 60 & echo $! > {grandchild}; touch "$READY"; wait'
    await supervisor.start(spec(tmp_path, script))
    orphan = int(grandchild.read_text())

    os.kill(supervisor.states["job"].pid or 0, signal.SIGKILL)

    await until(lambda: orphan not in left_behind(tmp_path / "home"))


async def test_goes_on_trying_what_cannot_start_again(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    script = f'test -e {tmp_path}/broken && exit 3; touch "$READY"; exec sleep 60'
    await supervisor.start(spec(tmp_path, script))
    state = supervisor.states["job"]
    (tmp_path / "broken").touch()
    (tmp_path / "ready").unlink()

    os.kill(state.pid or 0, signal.SIGTERM)
    await until(lambda: state.restarts >= 3)
    assert state.reason is not None
    assert "exit code 3" in state.reason

    (tmp_path / "broken").unlink()
    await until(lambda: state.state == "ready")


async def test_a_failed_first_start_shows_the_end_of_the_log(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    with pytest.raises(StackError) as caught:
        await supervisor.start(spec(tmp_path, "echo no such weights; exit 7"))
    assert caught.value.message == (
        "job ended while it was starting (exit code 7)\n  | no such weights"
    )


async def test_a_start_that_takes_too_long_is_ended(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(StackError, match="job was not ready after 0 s"):
        await supervisor.start(spec(tmp_path, "exec sleep 60", ready_within_s=0.2))
    assert left_behind(tmp_path / "home") == []


async def test_stops_in_reverse_and_kills_what_ignores_the_request(tmp_path: Path) -> None:
    home = tmp_path / "home"
    supervisor = Supervisor(home)
    order = tmp_path / "order"
    for name in ("first", "second"):
        script = f'trap "echo {name} >> {order}; exit 0" TERM; touch "$READY"; sleep 60 & wait'
        await supervisor.start(spec(tmp_path, script, name=name))
        (tmp_path / "ready").unlink()
    stubborn = 'trap "" TERM; touch "$READY"; sleep 60 & wait; sleep 60'
    await supervisor.start(spec(tmp_path, stubborn, name="stubborn", grace_s=0.1))

    await supervisor.stop()

    assert order.read_text().split() == ["second", "first"]
    assert left_behind(home) == []


async def test_hurry_cuts_the_grace_short(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "home")
    stubborn = 'trap "" TERM; touch "$READY"; sleep 600 & wait; sleep 600'
    await supervisor.start(spec(tmp_path, stubborn, grace_s=600))
    supervisor.hurry.set()
    async with asyncio.timeout(120):
        await supervisor.stop()
    assert left_behind(tmp_path / "home") == []


async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = f"""
import asyncio, pathlib
from gateway.local.child import ChildSpec, polled
from gateway.local.supervisor import Supervisor
async def main():
    supervisor = Supervisor(pathlib.Path({str(home)!r}), guard_grace_s=0.5)
    ready = pathlib.Path({str(tmp_path / "ready")!r})
    script = f'trap "" TERM; setsid sleep 600 & touch {{ready}}; wait; sleep 600'
    await supervisor.start(ChildSpec(
        name="job", command=lambda: ["sh", "-c", script],
        ready=lambda: polled(ready.exists), ready_within_s=20))
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    parent = run_until_up(program)
    assert len(left_behind(home)) >= 2

    parent.kill()
    parent.wait()

    await until(lambda: left_behind(home) == [])


async def test_a_new_run_clears_what_an_older_one_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    older = sleeper(mark(home, "older"))
    newer = sleeper(mark(home, "newer"))
    try:
        await until(lambda: len(left_behind(home)) == 2)
        assert end_all(home, "older") == [older.pid]
        assert older.wait(10) == -signal.SIGTERM
        assert newer.poll() is None

        supervisor = Supervisor(home)
        await supervisor.start(spec(tmp_path, 'touch "$READY"; exec sleep 60'))
        assert newer.wait(10) == -signal.SIGTERM
        await supervisor.stop()
    finally:
        for process in (older, newer):
            process.kill()
            process.wait()
