"""Every page over a day's data, in four ways, for `docs/images` and for eyes.

Screenshots go to `build/dashboard`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import EngineSettings, Settings
from gateway.local.environments import checkout
from tests.fakes import FakeSglang
from tests.fixtures_dashboard import Stage, browser, grave, modules, stage
from tests.proof.dashboard.world import ENGINES, HINT, World, day
from tests.running import Gateway, gateway_values, make_keys, running_gateway

__all__ = ["browser", "modules", "stage"]


@pytest.fixture
async def gateway(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    keys = await make_keys(database_url, "tiny")
    async with FakeSglang(model_path=tiny_model) as one, FakeSglang(model_path=tiny_model) as other:
        values = gateway_values(database_url, tiny_model, one.url, tmp_path)
        values["engines"] = tuple(
            EngineSettings(name=name, url=engine.url)
            for name, engine in zip(ENGINES, (one, other), strict=True)
        )
        async with running_gateway(Settings(**values), keys) as running:
            yield running


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    words = gateway.services.tokenizer
    async with day(database_url, gateway.keys, words, tmp_path) as found:
        yield found


@pytest.fixture
def shots() -> Path:
    made = checkout() / "build" / "dashboard"
    made.mkdir(parents=True, exist_ok=True)
    return made


async def test_every_page_of_a_days_data(stage: Stage, world: World, shots: Path) -> None:
    seen = await stage.play(
        "pages", SESSION=str(world.session), TURN=str(world.closest), SHOTS=str(shots)
    )
    assert [*seen] == ["light", "dark", "phone", "phone-dark"]
    for how, found in seen.items():
        assert grave(found["form"]) == []
        assert (found["trouble"], found["elsewhere"], found["policy"]) == ([], [], [])
        for name, view in found["views"].items():
            assert grave(view["violations"]) == [], (how, name)
            assert view["overflow"] <= 0, (how, name)
    views = seen["light"]["views"]
    assert "default v12" in views["overview"]["text"]
    assert "step_kl 0.31 is over 0.2" in views["learning"]["text"]
    assert HINT in views["session"]["text"]


async def test_tokens_by_each_colour(stage: Stage, world: World, shots: Path) -> None:
    seen = await stage.play(
        "tokens", SESSION=str(world.session), TURN=str(world.closest), SHOTS=str(shots)
    )
    for scheme in ("light", "dark"):
        assert seen[scheme]["trouble"] == []
        by = seen[scheme]["by"]
        assert [*by] == ["score", "version", "probability", "teacher"]
        for name, one in by.items():
            assert grave(one["violations"]) == [], (scheme, name)
            assert len(one["legend"]) == len(one["classes"]), (scheme, name)
        assert by["score"]["legend"] == ["below 0"]
        assert by["version"]["legend"] == ["version 11", "version 12"]


async def test_what_is_shown_before_anything_is_known(
    stage: Stage, world: World, shots: Path
) -> None:
    seen = await stage.play("waiting", SESSION=str(world.session), SHOTS=str(shots))
    for scheme in ("light", "dark"):
        away = seen[scheme].pop("away")
        assert away["notice"] == "The gateway does not answer. Trying again."
        assert grave(away["violations"]) == []
        for name, view in seen[scheme].items():
            assert "Loading …" in view["text"], (scheme, name)
            assert "Nothing" not in view["text"], (scheme, name)
            assert view["busy"] == "true", (scheme, name)
            assert grave(view["violations"]) == [], (scheme, name)
