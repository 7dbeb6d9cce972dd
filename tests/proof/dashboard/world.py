"""A day of an imagined deployment, for people to look at: all of it is the same each time.

Four agents talk to a lineage that makes a version every two hours. Version 7 is refused. Scores
rise from -0.1 to 0.7 over the day, by numbers drawn from a fixed seed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.config import DatabaseSettings
from gateway.records import (
    FeedbackRecord,
    Judgement,
    PolicyKind,
    PolicyRef,
    SessionRecord,
    StepRecord,
    SwapRecord,
    Teaching,
    Timings,
    TurnKind,
    TurnRecord,
    Usage,
    VersionSpan,
    new_id,
)
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from gateway.tokens.tokenizer import Tokenizer
from tests.factories import next_state, session, turn
from tests.running import Keys

DAY = 86_400.0
VERSIONS, REFUSED = 12, 7
CLIENTS = ("helpdesk/2.1", "coder/0.9", "openai-python/3", "research/1.4")
TOOLS = (None, None, None, "search", "read_file", "bash")
ENGINES = ("sglang-0", "sglang-1")
#: What the session that is looked at closely says, and what follows.
TALK = (
    ("Where is my order 4711?", "It left Oslo this morning and arrives on Friday.", "Thanks!"),
    ("Can it come on Thursday?", "I have asked the carrier to bring it on Thursday.", "Great."),
    ("And to my office?", "It goes to your home; the carrier takes no changes now.", "No, ask."),
    ("And to my office?", "I have asked: it comes to your office on Thursday.", "Perfect!"),
)
HINT = "The carrier takes a change of address until the evening before."


@dataclass(slots=True)
class World:
    """`session` has the turns of `TALK`, of which the last two answer the same message."""

    session: UUID
    closest: UUID
    scores: dict[UUID, float] = field(default_factory=dict)


@asynccontextmanager
async def day(database_url: str, keys: Keys, words: Tokenizer, home: Path) -> AsyncIterator[World]:
    """Fill a database; two judges and a trainer are alive while the block runs."""
    async with AsyncExitStack() as stack:
        settings = DatabaseSettings(spool=home / "seeding")
        database = await Database.open(settings, database_url, application="seeding")
        stack.push_async_callback(database.close)
        found = await Day(database, keys, words, home).fill()
        for kind, detail in _reports(keys.lineage_id):
            await stack.enter_async_context(Heartbeat(database, kind, lambda told=detail: told))
        yield found


class Day:
    """Fills one database. Times are seconds since 1970; the day ends a minute ago."""

    def __init__(self, database: Database, keys: Keys, words: Tokenizer, home: Path) -> None:
        self._database, self._keys, self._words, self._home = database, keys, words, home
        self._draw = random.Random(9)
        self._end = time.time() - 60
        self._start = self._end - DAY
        self._tenant = UUID(int=0)
        self._closely: set[UUID] = set()

    async def fill(self) -> World:
        self._tenant = await KeyStore(self._database).ensure_tenant("one")
        writer = await TurnWriter.open(self._database)
        world = await self._talk(writer)
        for number in range(160):
            await self._session(writer, world, number)
        await writer.close()
        await self._judge(world.scores, world.closest)
        await self._train()
        await self._happen()
        return world

    def _version(self, at: float) -> int:
        """Live at a time; the refused one never is."""
        made = int((at - self._start) / DAY * (VERSIONS + 1))
        return made - 1 if made == REFUSED else made

    def _said(self, at: float, text: str, **values: Any) -> dict[str, Any]:
        """A reply in ids, with plausible log-probabilities and times."""
        ids = self._words.encode(text)
        first = self._draw.lognormvariate(math.log(90), 0.35)
        return {
            "reply": {"role": "assistant", "content": text},
            "sampled_ids": ids,
            "logprobs": [-self._draw.expovariate(2.2) for _ in ids],
            "spans": (VersionSpan(version=self._version(at), start=0, end=len(ids)),),
            "engine": self._draw.choice(ENGINES),
            "usage": Usage(prompt_tokens=self._draw.randint(60, 900), completion_tokens=len(ids)),
            "timings": Timings(
                first_token_ms=first, total_ms=first + len(ids) * self._draw.uniform(14, 26)
            ),
            "created_at": at,
            **values,
        }

    async def _session(self, writer: TurnWriter, world: World, number: int) -> None:
        draw = self._draw
        at = self._start + (number + draw.random()) / 160 * (DAY - 600)
        record = session(
            tenant_id=self._tenant,
            lineage_id=self._keys.lineage_id,
            client=draw.choice(CLIENTS),
            external_id=f"ticket-{4000 + number}" if draw.random() < 0.6 else None,
            user=draw.choice(("ada", "grace", "alan", None)),
            seen_at=at,
        )
        parent: TurnRecord | None = None
        for _ in range(draw.choice((1, 2, 3, 4, 6))):
            at = min(at + draw.uniform(15, 200), self._end)
            text = "The quick brown fox jumps over the lazy dog. " * draw.randint(1, 3)
            values = self._said(at, text.strip())
            values["messages"] = ({"role": "user", "content": "What is the capital of France?"},)
            if (tool := draw.choice(TOOLS)) is not None:
                call = {"name": tool, "arguments": '{"city": "Oslo"}'}
                calls = [{"id": "call_1", "type": "function", "function": call}]
                values["reply"] = {**values["reply"], "tool_calls": calls}
            if draw.random() < 0.06:
                values |= {"trainable": False, "untrainable_reason": "greedy"}
            if draw.random() < 0.17:
                await writer.commit(record, turn(record, kind=TurnKind.SIDE, **values))
                continue
            made = turn(record, parent, **values)
            await writer.commit(record, made)
            parent = made
            if draw.random() < 0.8:
                await writer.commit(next_state(made, arrived_at=min(at + 40, self._end)))
                middle = -0.1 + 0.8 * (at - self._start) / DAY
                drawn = draw.gauss(middle, 0.8)
                world.scores[made.id] = 1.0 if drawn > 0.3 else -1.0 if drawn < -0.3 else 0.0

    async def _talk(self, writer: TurnWriter) -> World:
        at = self._end - 900
        record: SessionRecord = session(
            tenant_id=self._tenant, lineage_id=self._keys.lineage_id, client=CLIENTS[0],
            external_id="order-4711", user="grace", resolved_by="header", seen_at=at,
        )  # fmt: skip
        world = World(session=record.id, closest=record.id)
        turns: list[TurnRecord] = []
        for index, (asked, text, _) in enumerate(TALK):
            parent = turns[min(index, 2) - 1] if index else None
            values = self._said(at + 60 * index, text)
            size = len(values["sampled_ids"])
            if index in (1, 2):
                # Another version went live while these were sampled.
                values["spans"] = (
                    VersionSpan(version=11, start=0, end=size // 2),
                    VersionSpan(version=12, start=size // 2, end=size),
                )
            values["messages"] = ({"role": "user", "content": asked},)
            turns.append(turn(record, parent, resolve_rule="header", **values))
        await writer.commit(record, *turns)
        self._closely |= {made.id for made in turns}
        for made, (_, _, follows), score in zip(turns, TALK, (1.0, 1.0, -1.0, 1.0), strict=True):
            messages = ({"role": "user", "content": follows},)
            await writer.commit(next_state(made, messages=messages, arrived_at=at + 300))
            world.scores[made.id] = score
        heard = FeedbackRecord(
            id=new_id(), tenant_id=self._tenant, turn_id=turns[3].id, score=1.0, text="Solved."
        )
        await writer.commit(heard)
        world.closest = turns[2].id
        return world

    async def _judge(self, scores: dict[UUID, float], taught: UUID) -> None:
        """All but a few, which stay in hand."""
        worker, claims = new_id(), JudgeClaims(self._database)
        jobs = await claims.claim(worker, 2000, 600)
        closely = [job for job in jobs if job.turn_id in self._closely]
        others = [job for job in jobs if job.turn_id not in self._closely]
        for job in closely + others[:-5]:
            score = scores[job.turn_id]
            rule = {1.0: "thanks", -1.0: "correction", 0.0: None}[score]
            judgement = Judgement(
                judge="rules" if rule else "llm", rule=rule, score=score, confidence=0.9,
                hint=HINT if job.turn_id == taught else None,
                reason="Asks for the same thing again." if job.turn_id == taught else None,
            )  # fmt: skip
            teaching = await self._teaching(job.turn_id) if job.turn_id == taught else None
            method = "combined" if teaching else "binary"
            await claims.finish(worker, job, judgement, method, teaching)

    async def _teaching(self, turn_id: UUID) -> Teaching:
        size: int = await self._database.fetchval(
            "SELECT completion_len FROM turns WHERE id = $1", turn_id
        )
        return Teaching(
            teacher="live", model="nextstate", hint=HINT, prompt_len=60,
            lineage_id=self._keys.lineage_id, version=12,
            logprobs=[-self._draw.expovariate(1.2) for _ in range(size)],
            top_ids=(), top_logprobs=(),
        )  # fmt: skip

    async def _train(self) -> None:
        lineage = self._keys.lineage_id
        policies, samples = PolicyStore(self._database), SampleStore(self._database)
        leader = await policies.become_leader(lineage)
        assert leader is not None
        live = 0
        for version in range(1, VERSIONS + 1):
            at = self._start + version * DAY / (VERSIONS + 1)
            rows = await self._database.fetch(
                "SELECT s.id, s.version_min FROM samples s JOIN turns t ON t.id = s.turn_id"
                " WHERE s.state = 'ready' AND t.created_at < to_timestamp($1)"
                " ORDER BY t.created_at LIMIT 24",
                at - 300,
            )
            taken = {row["id"]: max(0, live - row["version_min"]) for row in rows}
            await samples.lease(lineage, leader.epoch, [*taken])
            assert await policies.allocate_version(lineage, leader.epoch) == version
            await policies.advance(self._step(leader.epoch, live, version, taken, at))
            if version == REFUSED:
                why = "step_kl 0.31 is over 0.2"
                await policies.refuse(lineage, leader.epoch, version, why)
                continue
            await policies.promote(lineage, leader.epoch, version)
            for place, engine in enumerate(ENGINES):
                swap = SwapRecord(
                    lineage_id=lineage, engine=engine, from_version=live, to_version=version,
                    outcome="loaded", load_ms=self._draw.uniform(30, 55),
                    started_at=at + 5 + place, ended_at=at + 6 + place,
                )  # fmt: skip
                await policies.record_swap(swap)
            live = version
        await leader.release()

    def _step(
        self, epoch: int, live: int, version: int, taken: dict[UUID, int], at: float
    ) -> StepRecord:
        done, noise = version / VERSIONS, self._draw.uniform(-0.04, 0.04)
        lineage = self._keys.lineage_id
        uri = str(adapter(self._home / f"v{version}"))
        return StepRecord(
            id=new_id(), lineage_id=lineage, epoch=epoch, from_version=live, to_version=version,
            policy=PolicyRef(lineage_id=lineage, version=version, kind=PolicyKind.LORA, uri=uri),
            checkpoint=uri, sample_ids=tuple(taken), lags=tuple(taken.values()),
            metrics={
                "score_mean": round(-0.1 + 0.8 * done + noise, 4),
                "loss": round(0.52 * math.exp(-2 * done) + abs(noise), 4),
                "entropy": round(2.0 - 0.5 * done + noise, 4),
                "kl": round(0.02 + 0.05 * done + noise / 8, 4),
                "grad_norm": round(0.9 - 0.3 * done + noise, 4),
                "step_kl": 0.31 if version == REFUSED else round(0.02 + abs(noise) / 4, 4),
            },
            started_at=at - 100, ended_at=at,
        )  # fmt: skip

    async def _happen(self) -> None:
        """Times of what was written just now, as if it had been written then."""
        when = f"to_timestamp({self._start} + version * {DAY / (VERSIONS + 1)})"
        await self._database.execute(f"UPDATE policies SET created_at = {when}")
        named = when.replace("version", "(detail ->> 'version')::int8")
        await self._database.execute(f"UPDATE events SET at = {named}")


def adapter(directory: Path) -> Path:
    """What the fake engine loads as one."""
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    return directory


def _reports(lineage: UUID) -> list[tuple[str, dict[str, Any]]]:
    health = {
        "judgements": 312, "settled_by_rules": 0.71, "scored": 0.94, "hinted": 0.08,
        "votes": 271, "voted": 90, "vote_errors": 1, "parse_failures": 0.02,
        "disagreement": 0.12, "ms_p50": 2.1, "ms_p95": 1450.0,
        "score_drift": 0.04, "settled_drift": -0.01,
        "feedback_checked": 24, "feedback_agreement": 0.83, "feedback_kappa": 0.61,
        "audit_checked": 30, "audit_agreement": 0.9, "audit_kappa": 0.78,
    }  # fmt: skip
    alarmed = health | {
        "disagreement": 0.41, "feedback_checked": 0, "feedback_agreement": None,
        "feedback_kappa": None,
    }  # fmt: skip
    return [
        ("judge", {"scored": 302, "in_hand": 2, "alarms": [], "health": health}),
        ("judge", {"scored": 288, "in_hand": 1, "alarms": ["disagreement"], "health": alarmed}),
        ("trainer", {"batch": 16, "lineages": {lineage.hex: {"leads": True, "live": VERSIONS}}}),
    ]
