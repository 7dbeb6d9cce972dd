"""The judge's process: claims jobs from Postgres, scores them, and waits for nobody.

Any number of replicas may run. New jobs are announced on the channel `nextstate_judge`; polling
finds what an announcement missed. Postgres may go away and come back at any time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.turns import TurnStore
from gateway.store.workers import Heartbeat
from gateway.telemetry import configure_logging, get_logger
from judge.config import JudgeSettings
from judge.jobs import JobLoop
from judge.lineup import Lineup, lined_up
from judge.patience import patiently
from judge.verdicts import Judge

CHANNEL = "nextstate_judge"

log = get_logger(__name__)


def main(settings: JudgeSettings) -> None:
    """Judge until SIGTERM or SIGINT.

    Raises ConfigError for a rule or judge that does not exist, RevisionMismatch for a database of
    another build, StoreError where Postgres refuses the connection.
    """
    configure_logging(settings.log, "judge")
    asyncio.run(_until_signalled(settings))


async def _until_signalled(settings: JudgeSettings) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await run(settings, stop)


async def run(
    settings: JudgeSettings, stop: asyncio.Event, judges: Sequence[Judge] | None = None
) -> None:
    """Judge until `stop` is set; jobs in hand are finished within the configured grace."""
    if judges is not None:
        await _run(settings, stop, Lineup(tuple(judges)))
        return
    async with lined_up(settings.judge) as lineup:
        await _run(settings, stop, lineup)


async def _run(settings: JudgeSettings, stop: asyncio.Event, lineup: Lineup) -> None:
    config = settings.judge
    database = await patiently(lambda: _open(settings), stop)
    if database is None:
        return
    try:
        claims = JudgeClaims(database, max_attempts=config.max_attempts)
        heartbeat = Heartbeat(
            database,
            "judge",
            lambda: _report(loop, lineup),
            interval_s=config.heartbeat_s,
        )
        advise = lineup.hinter.advised if lineup.hinter else None
        loop = JobLoop(claims, lineup.judges, config, heartbeat.id, advise=advise)
        await database.listen(CHANNEL, lambda _: loop.wake())
        await patiently(heartbeat.start, stop)
        log.info("judge_started", worker_id=str(heartbeat.id), concurrency=config.concurrency)
        closing = asyncio.create_task(_close_idle(settings, TurnStore(database, 1)))
        try:
            await loop.run(stop)
        finally:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await heartbeat.close()
        log.info("judge_stopped", **loop.counts.report())
    finally:
        await database.close()


def _report(loop: JobLoop, lineup: Lineup) -> dict[str, Any]:
    """What the heartbeat tells: counts since the start, and figures of the last judgements."""
    spent = lineup.budget.report() if lineup.budget else {}
    health = {**loop.health.report(), **spent}
    return {**loop.counts.report(), "in_hand": loop.in_hand, "health": health}


async def _open(settings: JudgeSettings) -> Database:
    """Raises StoreUnavailable, or RevisionMismatch where this build cannot run on the schema."""
    url = settings.database_url
    database = await Database.open(settings.database, url, application="judge")
    try:
        await database.check_revision()
    except BaseException:
        await database.close()
        raise
    return database


async def _close_idle(settings: JudgeSettings, turns: TurnStore) -> None:
    """Close sessions that nobody came back to, so that each of their turns gets a verdict."""
    while True:
        try:
            closed = await turns.close_idle(settings.session_awareness.session_timeout_s)
        except (StoreUnavailable, asyncpg.PostgresError) as error:
            # Also a deadlock with a gateway that reopens one of them; the next look finds them.
            log.warning("idle_sessions_left_open", error=type(error).__name__)
        else:
            if closed:
                log.info("sessions_closed", reason="idle", sessions=closed)
        await asyncio.sleep(settings.judge.idle_check_s)
