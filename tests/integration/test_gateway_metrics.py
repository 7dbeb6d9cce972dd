"""`/metrics` counts what happened, and every metric that alerts and dashboards name is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import Settings
from gateway.records import Judgement
from judge.metrics import JudgeMetrics
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway
from tests.seeded import seeded
from trainer.metrics import TrainerMetrics

HI: Any = [{"role": "user", "content": "Hi"}]
DEPLOY = Path(__file__).parents[2] / "deploy"
DOCS = Path(__file__).parents[2] / "docs"


async def scraped(url: str, key: str | None) -> tuple[int, str]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers=headers) as got:
        return got.status, await got.text()


class Metrics:
    """Samples of one scrape, found by name and some of the labels."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        found = [
            one.value
            for one in self.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]
        assert found, (name, labels)
        return sum(found)


async def read(gateway: Gateway) -> Metrics:
    status, text = await scraped(gateway.url, gateway.keys.admin)
    assert status == 200
    return Metrics(text)


async def settled(gateway: Gateway) -> Metrics:
    """As soon as admission, which looks twice a second, knows of judge and trainer."""
    found = await read(gateway)
    while not any(one.name == "nextstate_lineage_backlog" for one in found.samples):
        found = await read(gateway)
    return found


async def test_requests_and_turns_are_counted(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.client("sk-ns-nobody") as nobody:
        for _ in range(2):
            gateway.says("Hello.")
            await client.chat.completions.create(model="tiny", messages=HI)
        gateway.says("Hello.")
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, temperature=0, stream=True
        )
        assert [chunk async for chunk in stream]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="tiny", messages=[])
        with pytest.raises(openai.AuthenticationError):
            await nobody.models.list()
    found = await read(gateway)
    requests = "nextstate_gateway_requests_total"
    kind = {"dialect": "openai_chat", "operation": "generate"}
    assert found.total(requests, **kind, status="200") == 3
    assert found.total(requests, **kind, status="400") == 1
    assert found.total(requests, operation="read", status="401") == 1
    assert found.total("nextstate_gateway_request_seconds_count", **kind) == 4
    assert found.total("nextstate_gateway_first_token_seconds_count", dialect="openai_chat") == 3
    turns = await gateway.rows("SELECT * FROM turns")
    stored = "nextstate_gateway_turns_total"
    kinds = {turn["kind"] for turn in turns}
    for one in kinds:
        for trainable in (True, False):
            expected = sum(t["kind"] == one and t["trainable"] is trainable for t in turns)
            if expected:
                word = "yes" if trainable else "no"
                assert found.total(stored, kind=one, trainable=word) == expected
    assert found.total("nextstate_gateway_turns_untrainable_total", reason="temperature_zero") == 1
    tokens = "nextstate_gateway_tokens_total"
    assert found.total(tokens, kind="completion") == sum(t["completion_len"] for t in turns)
    assert found.total(tokens, kind="prompt") == sum(t["prompt_len"] for t in turns)
    assert found.total("nextstate_gateway_stream_mismatches_total") == 0
    assert found.total("nextstate_gateway_in_flight") == 0
    assert found.total("nextstate_engine_up", engine="engine") == 1
    assert found.total("nextstate_store_up") == 1
    assert found.total("nextstate_workers", kind="gateway") == 1
    assert found.total("nextstate_workers", kind="judge") == 0
    # Processes behind one address are told apart.
    workers = {sample.labels["worker"] for sample in found.samples}
    assert workers == {gateway.services.worker_id.hex}


async def test_what_judging_and_learning_wait_for_is_told(
    gateway: Gateway, database_url: str, tmp_path: Path
) -> None:
    async with seeded(database_url, gateway.keys, tmp_path):
        await gateway.services.database.execute(
            "UPDATE judgements SET run_after = now() - interval '5 minutes' WHERE state = 'queued'"
        )
        found = await settled(gateway)
        admission = gateway.services.admitter.describe(gateway.keys.lineage_id)
    assert found.total("nextstate_judging_jobs", state="queued") == 1
    assert 300 <= found.total("nextstate_judging_oldest_seconds") < 360
    lineage = {"lineage": "default"}
    assert found.total("nextstate_lineage_live_version", **lineage) == 1
    assert found.total("nextstate_lineage_steps", **lineage) == 1
    assert 60 <= found.total("nextstate_lineage_last_step_age_seconds", **lineage) < 120
    # That of the other tenant, of version 0, and two of version 1: one lineage trains on all.
    assert found.total("nextstate_lineage_samples", **lineage, state="ready") == 3
    assert found.total("nextstate_lineage_lag_max", **lineage) == 1
    assert found.total("nextstate_workers", kind="judge") == 1
    assert found.total("nextstate_lineage_backlog", **lineage) == 3
    assert found.total("nextstate_lineage_capacity", **lineage) == admission["capacity"]


async def test_where_postgres_does_not_tell_the_rest_is_told(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    async with FakeSglang(model_path=tiny_model) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        values["gateway"] = values["gateway"].model_copy(update={"metrics_open": True})
        async with running_gateway(Settings(**values), keys) as running:
            # Open: nobody is asked for a key.
            assert (await scraped(running.url, None))[0] == 200
            await running.services.database.execute("ALTER TABLE lineages RENAME TO gone")
            await running.services.database.pool.expire_connections()
            found = None
            while found is None or found.total("nextstate_store_up") == 1:
                status, text = await scraped(running.url, None)
                assert status == 200
                found = Metrics(text)
            assert found.total("nextstate_gateway_ready") == 1
            assert not any(one.name == "nextstate_judging_jobs" for one in found.samples)
            await running.services.database.execute("ALTER TABLE gone RENAME TO lineages")


async def test_metrics_need_an_admin_key_unless_they_are_open(gateway: Gateway) -> None:
    status, text = await scraped(gateway.url, None)
    assert (status, json.loads(text)["status"]) == (401, 401)
    assert (await scraped(gateway.url, gateway.keys.agent))[0] == 403


def expressions() -> list[str]:
    """Every query of the alert rules and of the dashboard's panels."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    board = json.loads((DEPLOY / "grafana" / "nextstate.json").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    found += [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return found + [one["expr"] for one in board["annotations"]["list"]]


#: A name, and the labels that are asked of it.
SELECTED = re.compile(r"\b((?:nextstate|process|python)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([\w, ]*)\)")


def labels_of(families: Iterable[Any]) -> dict[str, set[str]]:
    """The labels of each series by its name; of one without any yet, those of its family."""
    found: dict[str, set[str]] = {}
    for family in families:
        for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        ):
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture
async def exported(gateway: Gateway, database_url: str, tmp_path: Path) -> list[Any]:
    """What gateway, judge and trainer export, with a sample of as much as there may be."""
    gateway.says("Hello.")
    async with gateway.client() as client:
        await client.chat.completions.create(model="tiny", messages=HI, temperature=0)
    async with seeded(database_url, gateway.keys, tmp_path):
        families = (await settled(gateway)).families
    judging, training = CollectorRegistry(), CollectorRegistry()
    detail = {"alarms": ["ms_p95"], "health": {"disagreement": 0.5}, "claimed": 1}
    judge = JudgeMetrics(judging, lambda: detail)
    judge.judged(Judgement(judge="llm", score=1.0, votes=({"kind": "grade", "score": 1},)), 0.1)
    trainer = TrainerMetrics(training)
    trainer.stepped("a", 1, {"dropped_stale": 1.0}, (0,))
    return [*families, *judging.collect(), *training.collect()]


async def test_every_metric_is_listed_and_no_other(exported: list[Any]) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    names = {one.name + ("_total" if one.type == "counter" else "") for one in exported}
    assert set(rows) == {name for name in names if name.startswith("nextstate_")}


async def test_alerts_and_dashboard_name_only_what_is_exported(exported: list[Any]) -> None:
    known = labels_of(exported)
    queries = expressions()
    assert len(queries) > 40
    for query in queries:
        grouped = {name.strip() for one in GROUPED.findall(query) for name in one.split(",")}
        seen: set[str] = {"le"}
        for name, matchers in SELECTED.findall(query):
            assert name in known, (name, query)
            asked = {one.partition("=")[0].strip("!~ ") for one in matchers.split(",") if one}
            assert asked <= known[name], (name, asked, query)
            seen |= known[name]
        assert grouped <= seen, (grouped - seen, query)


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "action"}


def test_panels_have_numbers_and_places_of_their_own() -> None:
    board = json.loads((DEPLOY / "grafana" / "nextstate.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
