"""The judge's process: claims jobs from Postgres, scores them, and waits for nobody.

Any number of replicas may run. New jobs are announced on the channel `nextstate_judge`; polling
finds what an announcement missed. Postgres may go away and come back at any time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.classify import Awareness
from gateway.config import Settings, config_file, load
from gateway.store.audits import Audits
from gateway.store.awareness import AwarenessFollower
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.idle import close_idle_sessions
from gateway.store.pauses import Paused, PauseFollower
from gateway.store.retention import keep_retention
from gateway.store.turns import TurnStore
from gateway.store.workers import Heartbeat
from gateway.telemetry import configure_logging, get_logger
from gateway.telemetry.scrape import served
from gateway.telemetry.tracing import Traces
from judge.alarms import alarms
from judge.audit import Auditor, auditing
from judge.config import JudgeConfig, JudgeSettings
from judge.health import Health
from judge.jobs import JobLoop
from judge.lineup import Lineup, lined_up
from judge.metrics import JudgeMetrics
from judge.patience import patiently
from judge.school import opened
from judge.taught import Teach
from judge.usage import Price
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
    async with lined_up(settings.judging) as lineup:
        await _run(settings, stop, lineup)


async def _run(settings: JudgeSettings, stop: asyncio.Event, lineup: Lineup) -> None:
    config = settings.judging
    database = await patiently(lambda: _open(settings), stop)
    if database is None:
        return
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        registry = CollectorRegistry()
        metrics = JudgeMetrics(registry, lambda: _report(loop, lineup, config))
        teach: Teach | None = None
        if config.teaching is not None:
            teach = await stack.enter_async_context(opened(settings, config.teaching, database))
        traces = Traces.configured(settings.tracing, "judge")
        if traces is not None:
            stack.push_async_callback(traces.close)
        auditor: Auditor | None = None
        if config.audit is not None:
            auditor = await stack.enter_async_context(auditing(config.audit, Audits(database)))
        pauses = PauseFollower(database, changed=lambda: loop.wake())  # noqa: PLW0108 - made later
        claims = JudgeClaims(
            database,
            max_attempts=config.max_attempts,
            max_lag=settings.freshness.max_lag if config.skip_stale else None,
            paused=lambda: pauses.current.of(Paused.JUDGING),
            skipped=metrics.skipped,
        )
        heartbeat = Heartbeat(
            database,
            "judge",
            lambda: _report(loop, lineup, config),
            interval_s=config.heartbeat_s,
        )
        loop = JobLoop(
            claims,
            lineup.judges,
            config,
            heartbeat.id,
            advise=lineup.hinter.advised if lineup.hinter else None,
            teach=teach,
            price=_price(config),
            health=Health(recorder=metrics),
            auditor=auditor,
            traces=traces,
        )
        if config.metrics_port is not None:
            port = stack.enter_context(
                served(registry, config.metrics_host, config.metrics_port, "judge.metrics_port")
            )
            log.info("metrics_served", port=port)
        await pauses.refresh()
        await database.listen(CHANNEL, lambda _: loop.wake())
        await patiently(heartbeat.start, stop)
        log.info("judge_started", worker_id=str(heartbeat.id), concurrency=config.concurrency)
        awareness = Awareness(settings.session_awareness)
        rules = AwarenessFollower(
            awareness,
            database,
            file=config_file(),
            read=lambda: load(Settings).session_awareness,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, rules.reload)
        tasks = [
            asyncio.create_task(rules.run()),
            asyncio.create_task(pauses.run()),
            asyncio.create_task(
                close_idle_sessions(TurnStore(database, 1), awareness, config.idle_check_s)
            ),
            asyncio.create_task(keep_retention(database, settings.retention)),
        ]
        try:
            await loop.run(stop)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            await heartbeat.close()
        log.info("judge_stopped", **loop.counts.report())


def _report(loop: JobLoop, lineup: Lineup, config: JudgeConfig) -> dict[str, Any]:
    """What the heartbeat tells: counts since the start, and figures of the last judgements."""
    health: dict[str, Any] = dict(loop.health.report())
    raised = alarms(health, config.alarms)
    if lineup.budget:
        health |= lineup.budget.report()
    if lineup.places:
        health |= {"places": lineup.places.limit, "closed_s": round(lineup.places.closed_s, 1)}
    return {**loop.counts.report(), "in_hand": loop.in_hand, "health": health, "alarms": raised}


def _price(config: JudgeConfig) -> Price:
    llm = config.llm
    return Price(prompt_usd=llm.prompt_usd, completion_usd=llm.completion_usd) if llm else Price()


async def _open(settings: JudgeSettings) -> Database:
    """Raises StoreUnavailable, or RevisionMismatch where this build cannot run on the schema."""
    url = settings.database_url
    database = await Database.open(settings.database, url, application="judge")
    try:
        await database.check_revision(newest=True)
    except BaseException:
        await database.close()
        raise
    return database
