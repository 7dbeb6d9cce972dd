"""`/metrics` for Prometheus: is it serving, is it capturing, is it judging, is it learning.

What this process counts has its worker's id on every series, so that processes behind one address
are never taken for one. What Postgres knows of judging and training is read as it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.api.auth import require_admin
from gateway.api.services import Services
from gateway.errors import StoreError
from gateway.telemetry import dropped_lines

_PATIENCE_S = 2.0
#: How long what Postgres said is said again, so that scrapes cost it little.
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class Labelled:
    """What other collectors have, each series with `worker` beside its own labels."""

    collectors: tuple[Collector, ...]
    worker: str

    def collect(self) -> Iterable[Metric]:
        for collector in self.collectors:
            for metric in collector.collect():
                labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                labelled.samples = [
                    self._labelled(sample)
                    for sample in metric.samples
                    # When a counter was made is of no use, and as much again to send.
                    if not sample.name.endswith("_created")
                ]
                yield labelled

    def _labelled(self, sample: Sample) -> Sample:
        return sample._replace(labels={**sample.labels, "worker": self.worker})


class ServingState(Collector):
    """Engines, requests in flight, the spool and the log, as they are when asked."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        pool, writer = self._services.pool, self._services.writer
        ready = GaugeMetricFamily(
            "nextstate_gateway_ready", "1 where some engine answers that is not drained."
        )
        ready.add_metric((), pool.ready)
        up = GaugeMetricFamily(
            "nextstate_engine_up", "1 where the engine answers.", labels=("engine",)
        )
        draining = GaugeMetricFamily(
            "nextstate_engine_draining",
            "1 where an operator has the engine drained: it gets no new request.",
            labels=("engine",),
        )
        there = GaugeMetricFamily(
            "nextstate_engine_in_flight",
            "Generations of this gateway that run now at the engine.",
            labels=("engine",),
        )
        running = GaugeMetricFamily(
            "nextstate_engine_requests", "Requests at the engine.", labels=("engine", "state")
        )
        serving = GaugeMetricFamily(
            "nextstate_engine_version",
            "Version of a lineage that new requests get from the engine.",
            labels=("engine", "lineage_id"),
        )
        failing = GaugeMetricFamily(
            "nextstate_engine_versions_failing",
            "Versions that the engine could not load.",
            labels=("engine",),
        )
        for engine in pool.describe():
            name = engine["name"]
            up.add_metric((name,), engine["healthy"])
            draining.add_metric((name,), engine["draining"])
            there.add_metric((name,), engine["requests"])
            failing.add_metric((name,), len(engine["failing"]))
            for state in ("running", "queued"):
                if engine[state] is not None:
                    running.add_metric((name, state), engine[state])
            for lineage, version in engine["serving"].items():
                serving.add_metric((name, lineage), version)
        flight = GaugeMetricFamily(
            "nextstate_gateway_in_flight", "Generations that run now, by engines with token ids."
        )
        flight.add_metric((), sum(sum(one.values()) for one in pool.in_flight().values()))
        away = GaugeMetricFamily(
            "nextstate_gateway_spooling", "1 where Postgres is away and turns go to the spool."
        )
        away.add_metric((), writer.spooling)
        spooled = CounterMetricFamily(
            "nextstate_gateway_calls_spooled", "Calls whose records went to the spool."
        )
        spooled.add_metric((), writer.spooled)
        dropped = CounterMetricFamily(
            "nextstate_log_lines_dropped", "Lines of the log that found no room."
        )
        dropped.add_metric((), dropped_lines())
        bound = GaugeMetricFamily(
            "nextstate_freshness_max_lag", "Versions that a sample may be behind."
        )
        bound.add_metric((), self._services.settings.freshness.max_lag)
        engines = [up, draining, there, running, serving, failing]
        return [ready, *engines, flight, away, spooled, dropped, bound]


class StoreState(Collector):
    """What the status of `store.overview` says, None where Postgres did not tell in time."""

    def __init__(
        self, status: Mapping[str, Any] | None, admission: Callable[[UUID], Mapping[str, Any]]
    ) -> None:
        self._status = status
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("nextstate_store_up", "1 where Postgres answers this gateway.")
        up.add_metric((), self._status is not None)
        if self._status is None:
            return [up]
        return [up, *self._judging(self._status), *self._learning(self._status["lineages"])]

    def _judging(self, status: Mapping[str, Any]) -> Iterable[Metric]:
        jobs = GaugeMetricFamily(
            "nextstate_judging_jobs", "Judging jobs that wait or are in hand.", labels=("state",)
        )
        for state in ("queued", "leased"):
            jobs.add_metric((state,), status["jobs"][state])
        age = GaugeMetricFamily(
            "nextstate_judging_oldest_seconds", "How long the oldest due job has waited."
        )
        oldest = status["jobs"]["oldest_at"]
        age.add_metric((), 0.0 if oldest is None else max(0.0, time.time() - oldest))
        sessions = GaugeMetricFamily("nextstate_sessions_open", "Sessions that are open.")
        sessions.add_metric((), status["sessions_open"])
        workers = GaugeMetricFamily(
            "nextstate_workers", "Processes that reported lately.", labels=("kind",)
        )
        kinds = [worker["kind"] for worker in status["workers"]]
        for kind in ("gateway", "judge", "trainer"):
            workers.add_metric((kind,), kinds.count(kind))
        return [jobs, age, sessions, workers]

    def _learning(self, lineages: Iterable[Mapping[str, Any]]) -> Iterable[Metric]:
        live = _lineage("live_version", "Version that engines are to serve.")
        steps = _lineage("steps", "Training steps that made a version.")
        age = _lineage("last_step_age_seconds", "Since the last training step ended.")
        samples = _lineage("samples", "Samples that wait for training.", "state")
        lag = _lineage("lag_max", "Versions that the oldest waiting sample is behind.")
        trains = _lineage("trains", "1 where the lineage is to be trained.")
        capacity = _lineage("capacity", "Turns that admission lets begin; at most 0 when full.")
        backlog = _lineage("backlog", "Trainable turns with a next state and no verdict.")
        for lineage in lineages:
            key = str(lineage["id"].hex), str(lineage["name"])
            live.add_metric(key, lineage["live_version"])
            steps.add_metric(key, lineage["steps"])
            trains.add_metric(key, lineage["trains"])
            admission = self._admission(lineage["id"])
            if admission["state"] != "off":
                capacity.add_metric(key, admission["capacity"])
                backlog.add_metric(key, admission["backlog"])
            if lineage["last_step_at"] is not None:
                age.add_metric(key, max(0.0, time.time() - lineage["last_step_at"]))
            for state in ("ready", "leased"):
                samples.add_metric((*key, state), lineage[state])
            if lineage["lag_max"] is not None:
                lag.add_metric(key, lineage["lag_max"])
        return [live, steps, age, samples, lag, trains, capacity, backlog]


def _lineage(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        f"nextstate_lineage_{name}", documentation, labels=("lineage_id", "lineage", *labels)
    )


class _Reader:
    """Asks Postgres at most once a second for each tenant, whoever asks here."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()
        self._known: dict[UUID | None, tuple[float, Mapping[str, Any] | None]] = {}

    async def status(self, tenant_id: UUID | None) -> Mapping[str, Any] | None:
        async with self._lock:
            at, found = self._known.get(tenant_id, (0.0, None))
            if time.monotonic() - at > _FRESH_S:
                found = await self._read(tenant_id)
                self._known = {tenant_id: (time.monotonic(), found)}
        return found

    async def _read(self, tenant_id: UUID | None) -> Mapping[str, Any] | None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._services.admin.status(tenant_id)
        except (StoreError, asyncpg.PostgresError, TimeoutError):
            return None


def routes(services: Services) -> APIRouter:
    router = APIRouter()
    ProcessCollector(registry=services.registry)
    GCCollector(registry=services.registry)
    state, reader = ServingState(services), _Reader(services)
    worker = services.worker_id.hex

    @router.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """For holders of an admin key, or for everybody where `gateway.metrics_open` is set.

        A key sees the lineages and the backlog of its tenant; with `metrics_open` all are told.
        """
        tenant_id = None
        if not services.settings.gateway.metrics_open:
            tenant_id = (await require_admin(services.keys, request.headers)).tenant_id
        stored = StoreState(await reader.status(tenant_id), services.admitter.describe)
        own = Labelled((services.registry, state, stored), worker)
        return Response(generate_latest(own), media_type=CONTENT_TYPE_LATEST)

    return router
