"""A schema is migrated and gateways are replaced under load: no request fails, no turn is lost.

Here the gateway that is replaced is this build's on the revision before; the proof
`tests/proof/operate` runs the build of that revision itself.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.config import Settings
from gateway.store.database import REVISIONS, migrate
from tests.fakes import FakeSglang
from tests.rolling import Agents
from tests.running import gateway_values, make_keys, running_gateway

ROOT = Path(__file__).parents[2]


async def test_no_request_fails_while_the_schema_is_migrated_and_gateways_replaced(
    empty_database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    url = empty_database_url
    up = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "alembic", "upgrade", REVISIONS[-2],
        cwd=ROOT, env={"DATABASE_URL": url},
    )  # fmt: skip
    assert await up.wait() == 0
    keys = await make_keys(url, "tiny")
    stop = asyncio.Event()
    async with FakeSglang(model_path=tiny_model) as engine, AsyncExitStack() as olds:

        def settings() -> Settings:
            values = gateway_values(url, tiny_model, engine.url, tmp_path)
            # However slow this machine is, what a test looks for is in Postgres at the end.
            patient = values["database"].model_copy(update={"commit_timeout_s": 120.0})
            return Settings(**{**values, "database": patient})

        old = await olds.enter_async_context(running_gateway(settings(), keys))
        assert old.services.database.revision == REVISIONS[-2]
        engine.script = lambda body: [*old.services.tokenizer.encode("So it is."), 2]
        agents = Agents([old.url], keys.agent)
        talking = asyncio.create_task(agents.talk(stop))
        await agents.more(8)
        await migrate(url)
        await agents.more(8)
        async with running_gateway(settings(), keys) as new:
            assert new.services.database.revision == REVISIONS[-1]
            agents.gateways.append(new.url)
            await agents.more(8)
            agents.gateways.remove(old.url)
            await agents.more(8)
            await olds.aclose()
            await agents.more(8)
            stop.set()
            await talking
            assert agents.failures == []
            assert {*agents.by_gateway} == {old.url, new.url}
            turns = await new.rows("SELECT session_id, depth FROM turns WHERE delivered")
        assert len(turns) == agents.asked
        # Each session is one line of turns, whoever served them.
        sessions = {row["session_id"] for row in turns}
        assert len(sessions) == agents.sessions
        for session in sessions:
            depths = sorted(row["depth"] for row in turns if row["session_id"] == session)
            assert depths == list(range(len(depths)))
