"""The swap bench as a whole, over engines that are fakes: clients, gateway, Postgres, trainer."""

from __future__ import annotations

from pathlib import Path

from bench.swap import WEIGHTS, measured, ours, refusing
from bench.swap_bed import Place
from bench.swap_figures import summary
from gateway.config import EngineSettings
from gateway.records import PolicyKind
from tests.fakes import FakeSglang
from tests.tiny_model import make_model


async def test_whole_weights_change_at_two_engines_and_nothing_is_lost(
    database_url: str, tmp_path: Path
) -> None:
    for number in range(WEIGHTS):
        make_model(tmp_path / f"model-{number}", seed=number)
    model = tmp_path / "model-0"
    one, two = (FakeSglang(model_path=model, chunk_delay_s=0.002) for _ in range(2))
    async with one, two:
        engines = [
            EngineSettings(name=name, url=fake.url) for name, fake in (("one", one), ("two", two))
        ]
        place = Place(engines, tmp_path, database_url)
        found = summary([await measured(place, PolicyKind.FULL, ours, 2)])
    assert found["swaps"] == 2
    assert (found["failed"], found["truncated"], found["restarted"]) == (0, 0, 0)
    assert found["unstored"] == 0
    assert found["spans_checked"] >= 3
    assert found["spans_wrong"] == 0
    # Single tokens may be as likely by others, too; whole replies are not.
    assert found["spans_told_apart"] > 0


async def test_a_server_that_answers_503_until_it_is_done_fails_requests(
    database_url: str, tmp_path: Path
) -> None:
    for number in range(WEIGHTS):
        make_model(tmp_path / f"model-{number}", seed=number)
    async with FakeSglang(model_path=tmp_path / "model-0", chunk_delay_s=0.002) as fake:
        place = Place([EngineSettings(name="one", url=fake.url)], tmp_path, database_url)
        found = summary([await measured(place, PolicyKind.FULL, refusing, 1)])
    assert found["failed"] > 0
    assert (found["truncated"], found["unstored"], found["spans_wrong"]) == (0, 0, 0)
