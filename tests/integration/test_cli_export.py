"""`nextstate export`, `train --dry-run` and `train --offline` on a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from gateway.cli import learning
from gateway.cli.commands import app
from gateway.errors import NotFound, TrainerError
from gateway.records import FinishReason, SampleHead
from gateway.store.samples import SampleStore
from tests.factories import session, turn
from tests.fixtures_engine import engine_python
from tests.tiny_llama import teaching
from tests.training import World, open_world
from trainer.exported import decode

Call = Callable[..., str]

#: What an independent reader makes of a table, in the engine's environment.
READ = """
import array, json, sys
import pyarrow.parquet as parquet
rows = parquet.read_table(sys.argv[1]).to_pylist()
for row in rows:
    for name, code in {"ids": "i", "mask": "b", "logprobs": "f", "versions": "i"}.items():
        row[name] = array.array(code, row[name]).tolist()
    for name in ("teaching", "kept"):
        row[name] = row[name] and json.loads(row[name])
print(json.dumps(rows))
"""


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    for name, value in {
        "NEXTSTATE_DEVICE": "cpu",
        "NEXTSTATE_MODEL__PATH": str(tiny_model),
        "NEXTSTATE_FRESHNESS__BATCH": "4",
        "NEXTSTATE_TRAINER__DIRECTORY": str(tmp_path / "policies"),
        "DATABASE_URL": database_url,
    }.items():
        monkeypatch.setenv(name, value)
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


@pytest.fixture
def call() -> Call:
    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


async def test_an_export_is_what_would_be_trained_and_trains_offline(
    world: World, call: Call, tmp_path: Path
) -> None:
    await world.judged(9)
    heads = await world.window_ids()
    out = tmp_path / "samples.jsonl"
    await asyncio.to_thread(call, "export", str(out))
    expected = await SampleStore(world.database).load(heads)
    found = list(decode(out.read_bytes().splitlines()))
    assert [one.id for one in found] == [one.id for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert list(one.prompt_ids) == list(other.prompt_ids)
        assert list(one.sampled_ids) == list(other.sampled_ids)
        assert list(one.logprobs) == list(other.logprobs)
        assert (one.spans, one.score, one.user) == (other.spans, other.score, other.user)
    assert await asyncio.to_thread(call, "export") == out.read_text()

    lines = await asyncio.to_thread(call, "train", "--offline", str(out))
    steps = [json.loads(line) for line in lines.splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["samples"] == 4 for step in steps)
    (version,) = (tmp_path / "policies" / "offline").iterdir()
    assert (version / "policy" / "adapter_model.safetensors").is_file()
    # Nothing in the database has changed.
    assert await world.samples() == [("ready", None, None)] * 9

    await asyncio.to_thread(call, "train", "--offline", str(out), "--full")
    (whole,) = {*(tmp_path / "policies" / "offline").iterdir()} - {version}
    assert (whole / "policy" / "model.safetensors").is_file()

    out.write_text("")
    with pytest.raises(TrainerError, match="too few"):
        await asyncio.to_thread(call, "train", "--offline", str(out))


async def test_a_dry_run_says_what_would_be_trained_and_why_the_rest_would_not(
    world: World, call: Call
) -> None:
    await world.judged(1, finish_reason=FinishReason.ABORT)
    good = await world.judged(5)
    one = session(lineage_id=world.lineage)
    unanswered = turn(one)
    untrainable = turn(one, trainable=False, untrainable_reason="grammar")
    await world.writer.commit(one, unanswered, untrainable)
    told = await asyncio.to_thread(call, "train", "--dry-run")
    head, *lines = told.splitlines()
    assert head.startswith("default: version 0 is live; 4 of 4 samples for the next step (due)")
    assert [line.split()[1] for line in lines[:4]] == [str(turn_id) for turn_id in good[:4]]
    reasons = {
        words[1]: " ".join(words[2:])
        for words in (line.split() for line in lines)
        if words[0] == "not"
    }
    assert reasons[str(good[4])] == "later"
    assert reasons[str(unanswered.id)] == "no next state yet"
    assert reasons[str(untrainable.id)] == "untrainable: grammar"
    assert list(reasons.values()).count("aborted") == 1
    assert len(reasons) == 4
    found = json.loads(await asyncio.to_thread(call, "train", "--dry-run", "--json"))
    assert [one["turn_id"] for one in found.pop("train")] == [str(one) for one in good[:4]]
    assert found.pop("not") == reasons
    assert found == {
        "lineage": "default", "live_version": 0, "batch": 4, "due": True, "waiting": 0,
    }  # fmt: skip
    assert await world.samples() == [("ready", None, None)] * 6


async def test_what_a_dry_run_does_not_look_at_yet_is_for_later(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 7 samples it looks at 5, and trains on 4."""
    good = await world.judged(7)
    window = SampleStore.window

    async def five(self: SampleStore, lineage_id: UUID, limit: int) -> list[SampleHead]:
        return await window(self, lineage_id, min(limit, 5))

    monkeypatch.setattr(SampleStore, "window", five)
    found = json.loads(await asyncio.to_thread(call, "train", "--dry-run", "--json"))
    assert [one["turn_id"] for one in found["train"]] == [str(one) for one in good[:4]]
    assert found["not"] == {str(one): "later" for one in good[4:]}


@pytest.mark.sglang
@pytest.mark.parametrize("group", [2, 512])
async def test_a_table_says_what_the_lines_say(
    world: World, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    monkeypatch.setattr(learning, "_GROUP_ROWS", group)
    await world.judged(2, teach=lambda of: teaching([-0.25] * len(of.sampled_ids)))
    await world.judged(3, finish_reason=FinishReason.LENGTH)
    await world.database.execute(
        "UPDATE samples SET state = 'dropped', reason = 'stale', version_lag = 9"
        " WHERE id = (SELECT id FROM samples ORDER BY arrived_at LIMIT 1)"
    )
    table, lines = tmp_path / "samples.parquet", await asyncio.to_thread(call, "export")
    await asyncio.to_thread(call, "export", str(table))
    process = await asyncio.create_subprocess_exec(
        engine_python(), "-c", READ, table, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    wanted = [json.loads(line) for line in lines.splitlines()]
    assert len(wanted) == 5
    assert wanted[0]["reason"] == "stale"
    assert wanted[0]["teaching"]["logprobs"][0] == -0.25
    assert json.loads(told) == wanted


async def test_what_is_not_there_is_said(world: World, call: Call, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="other"):
        await asyncio.to_thread(call, "export", "--lineage", "other")
    await asyncio.to_thread(call, "export", str(tmp_path / "none.parquet"))
    assert (tmp_path / "none.parquet").read_bytes()[:4] == b"PAR1"
