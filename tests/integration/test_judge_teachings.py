"""From a hint to a stored teaching that training finds, and a score that outlives the teacher."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings, load
from gateway.errors import ConfigError
from gateway.records import FeedbackRecord, SessionRecord, TurnRecord, VersionSpan, new_id
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.samples import SampleStore
from gateway.store.writer import TurnWriter
from gateway.tokens.tokenizer import Tokenizer
from judge.config import JudgeSettings
from judge.worker import run
from tests.factories import next_state, session, turn
from tests.fakes import FakeSglang
from tests.scripted_judge import ScriptedJudge, check_word

CORRECTION = "That's wrong. It is Canberra."
OPENING = "<|im_start|>user\nWhat is the capital of Australia?"
HINTED = f"{OPENING}\n\nA hint for this answer: {CORRECTION}"
CLOSING = "<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class School:
    """A conversation in ids of the tiny model, a scripted engine, and a judge to run."""

    database: Database
    writer: TurnWriter
    lineage: UUID
    fake: FakeSglang
    tokenizer: Tokenizer
    model: Path
    url: str

    async def turn(self, answer: str | None = CORRECTION) -> tuple[SessionRecord, TurnRecord]:
        """A trainable turn, sampled letter by letter, and what the user said of it."""
        of = session(lineage_id=self.lineage)
        sampled = [*(id_ for letter in "Sydney" for id_ in self.tokenizer.encode(letter)), 2]
        one = turn(
            of,
            messages=({"role": "user", "content": "What is the capital of Australia?"},),
            prompt_ids=tuple(self.tokenizer.encode(f"{OPENING}{CLOSING}")),
            sampled_ids=tuple(sampled),
            logprobs=(-1.0,) * len(sampled),
            spans=(VersionSpan(version=0, start=0, end=len(sampled)),),
        )

        await self.writer.commit(of, one)
        if answer is not None:
            await self.writer.commit(
                next_state(one, messages=({"role": "user", "content": answer},))
            )
        return of, one

    async def judge(self, done: int, **values: Any) -> None:
        """Judge until so many are done."""
        settings = load(
            JudgeSettings,
            database={"url": self.url},
            model={"path": self.model},
            engines=[{"url": self.fake.url, "connect_timeout_s": 2}],
            judge={"poll_s": 0.1, "retry_after_s": 0.01, **values},
        )
        stop = asyncio.Event()
        working = asyncio.create_task(run(settings, stop))
        query = "SELECT count(*) FROM judgements WHERE state = 'done'"
        async with asyncio.timeout(60):
            while await self.database.fetchval(query) < done:
                if working.done():
                    break
                await asyncio.sleep(0.05)
        stop.set()
        await working

    async def row(self, of: TurnRecord, table: str = "teachings") -> Any:
        return await self.database.fetchrow(
            f"SELECT * FROM {table} WHERE turn_id = $1 ORDER BY round DESC LIMIT 1", of.id
        )


@pytest.fixture
async def school(database_url: str, tmp_path: Path, tiny_model: Path) -> AsyncIterator[School]:
    database = await Database.open(
        DatabaseSettings(spool=tmp_path), database_url, application="test"
    )
    writer = await TurnWriter.open(database)
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    async with FakeSglang(model_path=tiny_model) as fake:
        tokenizer = Tokenizer.load(tiny_model)
        yield School(database, writer, lineage, fake, tokenizer, tiny_model, database_url)
    await writer.close()
    await database.close()


async def test_a_users_correction_is_taught_and_training_finds_it(school: School) -> None:
    _, one = await school.turn()
    await school.judge(1, sample_method="opd")
    prompt = school.tokenizer.encode(f"{HINTED}{CLOSING}")
    row = await school.row(one)
    assert (row["teacher"], row["version"], row["lineage_id"]) == ("base", 0, school.lineage)
    assert (row["hint"], row["model"], row["prompt_len"]) == (CORRECTION, "tiny", len(prompt))
    assert (row["completion_len"], row["top_k"], row["top_ids"]) == (len(one.sampled_ids), 0, b"")
    judged = await school.row(one, "judgements")
    assert (judged["score"], judged["rule"], judged["hint"]) == (-1, "correction", CORRECTION)
    assert judged["usage"]["teacher_tokens"] == len(prompt) + len(one.sampled_ids)
    (head,) = await SampleStore(school.database).window(school.lineage, 10)
    (sample,) = await SampleStore(school.database).load([head.id])
    assert sample.teaching is not None
    assert list(sample.sampled_ids) == list(one.sampled_ids)
    expected = school.fake.score([*prompt, *one.sampled_ids], len(prompt))
    assert list(sample.teaching.logprobs) == pytest.approx(expected, abs=1e-5)


async def test_others_in_each_place_are_stored_with_the_teachers_values(school: School) -> None:
    _, one = await school.turn()
    await school.judge(1, teacher={"top_k": 5})
    (head,) = await SampleStore(school.database).window(school.lineage, 10)
    (sample,) = await SampleStore(school.database).load([head.id])
    assert sample.teaching is not None
    ids = [*school.tokenizer.encode(f"{HINTED}{CLOSING}"), *one.sampled_ids]
    start = len(ids) - len(one.sampled_ids)
    assert len(sample.teaching.top_ids) == len(one.sampled_ids)
    for place, (row, values) in enumerate(
        zip(sample.teaching.top_ids, sample.teaching.top_logprobs, strict=True)
    ):
        told = school.fake.logprobs(ids[: start + place], None)
        assert list(row) == sorted(range(len(told)), key=lambda token: -told[token])[:5]
        assert list(values) == pytest.approx([told[token] for token in row], abs=1e-5)


async def test_a_live_teacher_is_the_version_that_is_served(school: School) -> None:
    uri = "/weights/2"
    await school.database.execute(
        "INSERT INTO policies (lineage_id, version, kind, uri, state) VALUES ($1, 2, 'lora', $2, "
        "'candidate')", school.lineage, uri,
    )  # fmt: skip
    await school.database.execute("UPDATE policies SET state = 'retired' WHERE version = 0")
    await school.database.execute("UPDATE policies SET state = 'live' WHERE version = 2")
    name = f"{school.lineage.hex}-v2"
    school.fake.adapters[name] = school.fake.known_adapters[name] = uri
    _, one = await school.turn()
    await school.judge(1, teacher={"kind": "live"})
    row = await school.row(one)
    assert (row["teacher"], row["version"]) == ("live", 2)
    assert school.fake.requests[-1]["lora_path"] == name


async def test_a_fixed_teacher_stands_elsewhere_and_shares_the_vocabulary(
    school: School, tmp_path: Path
) -> None:
    _, one = await school.turn()
    async with FakeSglang(model_path=school.model, name="wise") as wise:
        engine = {"name": "teacher", "url": wise.url}
        await school.judge(1, teacher={"kind": "fixed", "engine": engine})
        assert len(wise.requests) == 1
        assert school.fake.requests == []
        row = await school.row(one)
        assert (row["teacher"], row["model"], row["version"], row["lineage_id"]) == (
            "fixed", "wise", None, None,
        )  # fmt: skip
        other = tmp_path / "other"
        other.mkdir()
        for path in school.model.glob("*.json"):
            content = json.loads(path.read_text())
            if path.name == "tokenizer.json":
                vocab = content["model"]["vocab"]
                vocab["b"], vocab["c"] = vocab["c"], vocab["b"]
            (other / path.name).write_text(json.dumps(content))
        with pytest.raises(ConfigError, match="is another token there"):
            await school.judge(2, teacher={"kind": "fixed", "engine": engine, "model_path": other})


async def test_a_teacher_that_fails_costs_no_score_and_says_why(school: School) -> None:
    school.fake.faults.refuse = (503, "restarting")
    _, one = await school.turn()
    await school.judge(1, teacher={"retries": 1})
    judged = await school.row(one, "judgements")
    assert (judged["score"], judged["state"], judged["attempts"]) == (-1, "done", 1)
    assert judged["usage"]["teacher_error"].startswith("JudgeError: the teacher: EngineUnavailable")
    assert len(school.fake.requests) == 2
    assert await school.row(one) is None
    (head,) = await SampleStore(school.database).window(school.lineage, 10)
    (sample,) = await SampleStore(school.database).load([head.id])
    assert (sample.score, sample.teaching) == (-1, None)


async def test_without_a_hint_or_a_wish_nobody_is_taught(school: School) -> None:
    await school.turn("Thanks, that helps.")
    await school.judge(1, sample_method="combined")
    await school.turn()
    await school.judge(2)
    assert await school.database.fetchval("SELECT count(*) FROM teachings") == 0
    assert school.fake.requests == []


async def test_a_hint_that_votes_agreed_on_makes_a_sample_of_a_turn_without_a_score(
    school: School,
) -> None:
    def script(body: dict[str, Any]) -> str:
        check, wants = check_word(body), "improves" in body["messages"][0]["content"]
        said = '"improves": true, "hint": "Name the seat of parliament."' if wants else '"score": 0'
        return f'{{"check": "{check}", {said}}}'

    _, one = await school.turn("And what is its largest city?")
    async with ScriptedJudge(script) as server:
        llm = {"base_url": server.url, "model": "m", "hints": "majority"}
        await school.judge(1, sample_method="opd", llm=llm)
    row = await school.row(one)
    assert row["hint"] == "Name the seat of parliament."
    rows = await school.database.fetch("SELECT score, state FROM samples")
    assert [tuple(row) for row in rows] == [(0, "ready")]
    # A later word takes the hint back: the teaching stays with its own round.
    word = FeedbackRecord(id=new_id(), tenant_id=one.tenant_id, turn_id=one.id, score=1.0)
    await school.writer.commit(word)
    await school.judge(2, sample_method="opd")
    (head,) = await SampleStore(school.database).window(school.lineage, 10)
    (sample,) = await SampleStore(school.database).load([head.id])
    assert (sample.score, sample.teaching) == (1, None)
    assert await school.database.fetchval("SELECT count(*) FROM teachings") == 1


def test_a_teacher_is_configured_where_it_makes_sense() -> None:
    for wrong in (
        {"kind": "fixed"},
        {"kind": "base", "engine": {"url": "http://x"}},
        {"kind": "fixed", "engine": {"kind": "openai", "url": "http://x/v1"}},
        {"model_path": "/somewhere"},
    ):
        with pytest.raises(ConfigError):
            load(JudgeSettings, judge={"teacher": wrong})
