"""A turn's life, followed by its id alone: in the log, and as one trace through every process."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.config import FreshnessSettings, LogSettings, TracingSettings
from gateway.telemetry import configure_logging
from judge.config import JudgeConfig, JudgeSettings, TeacherConfig
from judge.worker import run as run_judge
from tests.collector import Collector
from tests.fakes import FakeSglang
from tests.fixtures_gateway import fake_gateway
from tests.running import Gateway, gateway_values, make_keys, running_gateway
from trainer.config import (
    GateSettings,
    LossSettings,
    PublishSettings,
    TrainerConfig,
    TrainerSettings,
)
from trainer.service import run as run_trainer

CORRECTION = "That's wrong. It is Canberra."
LIFE = ["served", "next_state", "scored", "hinted", "turn_trained", "turn_live"]
SPANS = {"turn", "generate", "store", "judge", "teach", "train", "publish"}
CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Stack:
    gateway: Gateway
    engine: FakeSglang
    collector: Collector
    log: io.StringIO

    async def asked(self, messages: list[Any], **headers: str) -> tuple[str, str]:
        """The id of the turn that replies, and the reply."""
        async with self.gateway.client() as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="tiny", messages=messages, max_tokens=6, extra_headers=headers
            )
        return raw.headers["x-nextstate-turn-id"], raw.parse().choices[0].message.content or ""

    def grep(self, turn: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines() if turn in line]

    async def until_logged(self, turn: str, event: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(150):
            while event not in [line["event"] for line in self.grep(turn)]:
                await asyncio.sleep(0.05)
        return self.grep(turn)


@pytest.fixture
async def stack(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Stack]:
    """Gateway, judge and trainer; an engine whose log-probabilities the gate lets pass."""
    log, stop = io.StringIO(), asyncio.Event()
    configure_logging(LogSettings(format="json"), "test", log)
    keys = await make_keys(database_url, "tiny")
    async with FakeSglang(model_path=tiny_model) as engine, Collector() as collector:
        # Six tokens, none of which ends a reply.
        engine.script = lambda _: [*range(70, 76)]
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        values["freshness"] = FreshnessSettings(batch=2)
        values["tracing"] = TracingSettings(
            endpoint=collector.url, headers={"x-collector": "hidden-word"}
        )
        trained = TrainerSettings(
            **values,
            trainer=TrainerConfig(
                directory=tmp_path / "policies",
                loss=LossSettings(max_step_kl=None),
                publish=PublishSettings(probe_tolerance=1e6, gate=GateSettings(mode="off")),
            ),
        )
        judging = JudgeConfig(teacher=TeacherConfig(), poll_s=0.1)
        async with running_gateway(trained, keys) as gateway, asyncio.TaskGroup() as group:
            group.create_task(run_judge(JudgeSettings(**values, judge=judging), stop))
            group.create_task(run_trainer(trained, stop))
            try:
                yield Stack(gateway, engine, collector, log)
            finally:
                stop.set()


async def test_one_id_finds_all_that_became_of_a_turn(stack: Stack) -> None:
    turns, following = [], []
    for number, headers in ((1, {}), (2, {"traceparent": f"00-{CLIENT[0]}-{CLIENT[1]}-01"})):
        said = [{"role": "user", "content": f"What is the capital of Australia, {number}?"}]
        turn, reply = await stack.asked(said, **headers)
        said += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": CORRECTION},
        ]
        turns.append(turn)
        following.append((await stack.asked(said))[0])
    for turn in turns:
        lines = await stack.until_logged(turn, "turn_live")
        assert [line["event"] for line in lines] == LIFE
        by_event = {line["event"]: line for line in lines}
        assert by_event["next_state"]["of_turn"] == turn
        assert all(by_event[name]["turn_id"] == turn for name in LIFE if name != "next_state")
        # One session and tenant all along; the version that sampled it, then the one it made.
        assert len({line["session_id"] for line in lines}) == 1
        assert len({line["tenant_id"] for line in lines[:4]}) == 1
        assert [by_event[name]["policy_version"] for name in LIFE if name != "next_state"] == [
            0, 0, 0, 1, 1,
        ]  # fmt: skip
        assert by_event["served"]["request_id"] != by_event["next_state"]["request_id"]
        assert by_event["hinted"]["taught"] is True
    assert "hidden-word" not in stack.log.getvalue()
    assert CORRECTION not in stack.log.getvalue()

    alone, traced = (turn.replace("-", "") for turn in turns)
    # Its first span is named by the id too, so that nothing about it needs to be stored.
    spans = await stack.collector.until(alone, SPANS)
    by_name = {span.name: span for span in spans}
    assert [len(spans), {*by_name}] == [len(SPANS), SPANS]
    root, own = by_name["turn"], alone[16:]
    assert (root.id, root.parent) == (own, "")
    assert {
        by_name[name].parent for name in ("generate", "store", "judge", "train", "publish")
    } == {own}
    assert by_name["teach"].parent == by_name["judge"].id
    assert {span.name: span.service for span in spans} == {
        **dict.fromkeys(("turn", "generate", "store"), "nextstate-gateway"),
        **dict.fromkeys(("judge", "teach"), "nextstate-judge"),
        **dict.fromkeys(("train", "publish"), "nextstate-trainer"),
    }
    for inner in ("generate", "store"):
        assert root.start <= by_name[inner].start <= by_name[inner].end <= root.end
    assert root.attributes["nextstate.turn_id"] == turns[0]
    assert root.attributes["gen_ai.usage.output_tokens"] == 6
    assert by_name["judge"].attributes["nextstate.score"] == -1
    # Both turns were trained in one step, which is a trace of its own.
    [step] = {link for span in (by_name["train"], by_name["publish"]) for link in span.links}
    assert [span.name for span in stack.collector.of(step[0])] == ["step"]

    # The other one is served inside its client's trace, and the rest of its life is linked.
    serving = {span.name: span for span in await stack.collector.until(CLIENT[0], {"store"})}
    assert {*serving} == {"turn", "generate", "store"}
    assert (serving["turn"].parent, serving["turn"].links) == (
        CLIENT[1], ((traced, traced[16:]),),
    )  # fmt: skip
    later = {span.name: span for span in await stack.collector.until(traced, SPANS - {*serving})}
    assert {*later} == SPANS - {"generate", "store"}
    assert later["turn"].links == ((CLIENT[0], serving["turn"].id),)
    assert later["judge"].parent == later["turn"].id == traced[16:]
    # And the engine is told where its own spans belong.
    told = [one["traceparent"] for one in stack.engine.headers if "traceparent" in one]
    assert len(told) == 4
    assert told[0] == f"00-{alone}-{by_name['generate'].id}-01"
    assert told[2] == f"00-{CLIENT[0]}-{serving['generate'].id}-01"
    assert {one["x-collector"] for one in stack.collector.headers} == {"hidden-word"}


@pytest.mark.parametrize("asked", [False, True])
async def test_what_was_said_is_in_the_log_only_where_that_is_asked_for(
    database_url: str, tiny_model: Path, tmp_path: Path, asked: bool
) -> None:
    out, log = io.StringIO(), LogSettings(format="json", content=asked)
    configure_logging(log, "gateway", out)
    async with fake_gateway(database_url, tiny_model, tmp_path, log=log) as gateway:
        gateway.says("Quite so.")
        async with gateway.client() as client:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Is it a secret?"}]
            )
    for handler in logging.getLogger().handlers:
        handler.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    said = [line for line in lines if line["event"] == "said"]
    assert ("Is it a secret?" in out.getvalue()) is asked
    assert ("Quite so." in out.getvalue()) is asked
    assert [(one["messages"], one["reply"]["content"]) for one in said] == [
        ([{"role": "user", "content": "Is it a secret?"}], "Quite so.")
    ] * asked
    assert gateway.keys.agent not in out.getvalue()


async def test_without_a_collector_engines_are_told_nothing_and_the_sdk_is_not_loaded(
    gateway: Any,
) -> None:
    gateway.says("Hello.")
    async with gateway.client() as client:
        await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi?"}],
            extra_headers={"traceparent": f"00-{CLIENT[0]}-{CLIENT[1]}-01"},
        )
    assert gateway.services.traces is None
    assert "traceparent" not in gateway.engine.headers[-1]
