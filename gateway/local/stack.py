"""The whole product on one machine: what starts, in which order, and what each is told.

PostgreSQL, then its schema and keys; then the engine, the judge and the trainer side by side; the
gateway last, so that what it offers is there. All of it stops in the reverse order: the gateway
drains while everything that it needs still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import yaml
from pydantic import SecretStr

from gateway.config import EngineSettings
from gateway.errors import NextstateError, StackError
from gateway.local import processes
from gateway.local import state as stack_state
from gateway.local.child import ChildSpec
from gateway.local.config import LocalSettings, plain
from gateway.local.keys import ensure_keys, read_key
from gateway.local.model import ensure_model
from gateway.local.postgres import EmbeddedPostgres
from gateway.local.processes import free_port
from gateway.local.state import Phase, StackState
from gateway.local.supervisor import Supervisor
from gateway.records import Role
from gateway.store.database import Database, migrate


class Stack:
    """One stack in one directory. `say` hears of each step."""

    def __init__(
        self, settings: LocalSettings, *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.settings = settings
        self.home = settings.home
        self._own_engine = settings.own_engine
        self._say = say
        self._supervisor = Supervisor(self.home, changed=self._publish)
        self._postgres: EmbeddedPostgres | None = None
        self._held = contextlib.ExitStack()
        self._claimed = False
        self._state = StackState(pid=os.getpid(), phase="starting", started_at=time.time())
        self._configured = self.home / "settings.yaml"

    @property
    def url(self) -> str:
        """The gateway's base URL, without `/v1`."""
        server = self.settings.gateway
        host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host  # noqa: S104 - read
        return f"http://{host}:{server.port}"

    def key(self, role: Role = Role.AGENT) -> str:
        """The secret of the stack's own key. Raises StackError before it is started."""
        return read_key(self.home, role)

    async def start(self) -> None:
        """Bring everything up; when it returns, the gateway answers.

        Raises StackError or ConfigError with nothing left running.
        """
        try:
            self._held.enter_context(stack_state.claimed(self.home))
            self._claimed = True
            await self._start()
        except BaseException as error:
            self._state.error = error.message if isinstance(error, NextstateError) else "stopped"
            await self._end("failed")
            raise
        self._state.phase, self._state.step = "ready", ""
        self._publish()

    async def stop(self) -> None:
        """Stop everything, the gateway first."""
        self._state.phase = "stopping"
        self._step("stopping")
        await self._end("stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def hurry(self) -> None:
        """Kill what is still being waited for in `stop`."""
        self._supervisor.hurry.set()

    async def _end(self, phase: Phase) -> None:
        await self._supervisor.stop()
        if self._postgres is not None:
            self._postgres.release()
        self._state.phase, self._state.step = phase, ""
        self._publish()
        self._claimed = False
        self._held.close()

    async def _start(self) -> None:
        self._step("checking")
        free_port(self.settings.gateway.host, self.settings.gateway.port)
        model = await asyncio.to_thread(
            ensure_model, self.settings.model.path or self.settings.local.model
        )
        self._step("starting PostgreSQL")
        database_url = await self._database_url()
        self.settings = self._completed(model, database_url)
        self._write_settings()
        self._step("migrating the database")
        await migrate(database_url)
        async with self._database() as database:
            await ensure_keys(self.home, database, base_model=model.name)
        self._step("starting the engine, the judge and the trainer")
        await self._together(self._workers())
        self._step("starting the gateway")
        gateway = processes.gateway(self.settings, self._configured, self.url)
        await self._supervisor.start(gateway)

    async def _database_url(self) -> str:
        """The configured database, or one that is started here."""
        if self.settings.database.url is not None or os.environ.get("DATABASE_URL"):
            return self.settings.database_url
        server = self._postgres = EmbeddedPostgres(self.home / "postgres")
        await self._supervisor.start(processes.postgres(server, self.settings))
        return server.url

    def _completed(self, model: Path, database_url: str) -> LocalSettings:
        """The settings with everything in its place that was left open."""
        old = self.settings
        named = old.model.name
        changes: dict[str, object] = {
            "model": old.model.model_copy(update={"path": model}),
            "database": old.database.model_copy(
                update={"url": SecretStr(database_url), "spool": self._inside(old.database.spool)}
            ),
            "trainer": old.trainer.model_copy(
                update={"directory": self._inside(old.trainer.directory)}
            ),
        }
        if self._own_engine:
            port = old.local.engine_port or free_port("127.0.0.1", 0)
            url = f"http://127.0.0.1:{port}"
            changes["engines"] = (EngineSettings(name="sglang-0", url=url),)
        completed = old.model_copy(update=changes)
        self._state.url, self._state.model = self.url, named
        self._state.engines = [engine.url for engine in completed.engines]
        return completed

    def _inside(self, path: Path) -> Path:
        return path if path.is_absolute() else self.home / path

    def _write_settings(self) -> None:
        """What the processes read: one file instead of the variables that led to it."""
        try:
            self._configured.touch(mode=0o600)
            self._configured.write_text(yaml.safe_dump(plain(self.settings)))
        except OSError as error:
            raise StackError(f"cannot write {self._configured}: {error.strerror}") from error

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncIterator[Database]:
        database = await Database.open(
            self.settings.database, self.settings.database_url, application="nextstate-up"
        )
        try:
            yield database
        finally:
            await database.close()

    def _workers(self) -> list[ChildSpec]:
        local, file = self.settings.local, self._configured
        found = [processes.engine(self.settings)] if self._own_engine else []
        if local.judge:
            found.append(processes.worker("judge", "judge", self.settings, file))
        if local.trainer:
            found.append(processes.worker("trainer", "train", self.settings, file))
        return found

    async def _together(self, specs: list[ChildSpec]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(self._supervisor.start(spec))
        except BaseExceptionGroup as errors:
            # Callers know one tree of errors, and no groups.
            if (known := errors.subgroup(NextstateError)) is None:
                raise
            raise known.exceptions[0] from None

    def _step(self, step: str) -> None:
        self._state.step = step
        self._say(step)
        self._publish()

    def _publish(self) -> None:
        self._state.processes = self._supervisor.states
        if self._claimed:
            stack_state.write(self.home, self._state)
