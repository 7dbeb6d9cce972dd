"""Replays recorded requests through the gateway's own placing and storing."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.config import DatabaseSettings, ServerSettings, Settings
from gateway.pipeline.place import Placer
from gateway.pipeline.prompt import Prompt
from gateway.pipeline.recorder import Recorder
from gateway.pipeline.turn import Call, Sampled, turn_record
from gateway.records import (
    Finish,
    FinishReason,
    Principal,
    Reply,
    Role,
    ToolCall,
    new_id,
)
from gateway.store.database import Database
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.base import Dialect
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.openai_responses import OpenAIResponses

TRANSCRIPTS = Path(__file__).parents[1] / "tests" / "transcripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one client sent, and where each request belongs."""

    name: str
    client: str
    expect: tuple[str, ...]
    requests: tuple[Mapping[str, Any], ...]


@dataclass(slots=True, kw_only=True)
class Replayed:
    """The turns of a case, one a request; None where the request failed."""

    case: Case
    turns: list[UUID | None] = field(default_factory=list)


def cases(folder: Path = TRANSCRIPTS) -> list[Case]:
    found = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        case = Case(
            name=path.stem,
            client=data["client"],
            expect=tuple(data["expect"]),
            requests=tuple(data["requests"]),
        )
        if len(case.expect) != len(case.requests):
            raise ValueError(f"{path.name}: {len(case.requests)} requests, not {len(case.expect)}")
        found.append(case)
    return found


class Gateway:
    """The gateway's path from a request's bytes to a stored turn, the engine's reply given."""

    def __init__(self, database: Database, writer: TurnWriter) -> None:
        turns = TurnStore(database, 4096)
        self.database = database
        self._placer = Placer(Settings(), turns)
        self._recorder = Recorder(turns, writer)
        self._dialects: dict[str, Dialect] = {
            "/v1/chat/completions": OpenAIChat(),
            "/v1/messages": AnthropicMessages(),
            "/v1/responses": OpenAIResponses(),
        }

    async def serve(self, principal: Principal, sent: Mapping[str, Any]) -> UUID:
        """Place a request and store its turn; the turn's id."""
        dialect = self._dialects[sent["path"]]
        body = json.dumps(sent["body"]).encode()
        request = dialect.parse(body, sent["headers"], ServerSettings())
        now = time.time()
        place = await self._placer.place(principal, request, now)
        call = Call(
            principal=principal,
            request=request,
            place=place,
            created_at=now,
            clock=time.perf_counter(),
            unsettled=1,
        )
        turn_id = new_id()
        state = self._recorder.next_state(call, turn_id)
        record = turn_record(
            call,
            turn_id=turn_id,
            prompt=Prompt(ids=[1], branch_reason=place.resolution.branch_reason),
            sampling=request.sampling,
            sampled=Sampled(),
            finish=Finish(reason=FinishReason.ABORT if sent.get("left") else FinishReason.STOP),
            reply=_reply(sent["reply"]),
            engine="replay",
            queued_until=call.clock,
            reasoning_tokens=0,
        )
        if state is not None:
            await state
        await self._recorder.commit(call, record)
        return turn_id


def _reply(message: Mapping[str, Any]) -> Reply:
    calls = tuple(
        ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or ()
    )
    reasoning = message.get("reasoning_content", "")
    return Reply(text=message["content"] or "", reasoning=reasoning, tool_calls=calls)


def key(tenant_id: UUID) -> Principal:
    """An agent's key of a tenant."""
    return Principal(
        key_id=new_id(),
        tenant_id=tenant_id,
        tenant="bench",
        name="bench",
        role=Role.AGENT,
        lineage_id=new_id(),
    )


async def replay(gateway: Gateway, case: Case, principal: Principal) -> Replayed:
    """Send a case's requests one after another."""
    replayed = Replayed(case=case)
    for sent in case.requests:
        await _send(gateway, replayed, principal, sent)
    return replayed


async def replay_in_turn(
    gateway: Gateway, among: Sequence[Case], principal: Principal
) -> list[Replayed]:
    """Send the first request of every case, then the second of every case, and so on."""
    all_of_them = [Replayed(case=case) for case in among]
    for number in range(max(len(case.requests) for case in among)):
        for replayed in all_of_them:
            if number < len(replayed.case.requests):
                await _send(gateway, replayed, principal, replayed.case.requests[number])
    return all_of_them


async def _send(
    gateway: Gateway, replayed: Replayed, principal: Principal, sent: Mapping[str, Any]
) -> None:
    failed = sent["reply"] is None
    replayed.turns.append(None if failed else await gateway.serve(principal, sent))


@asynccontextmanager
async def opened(url: str, spool: Path) -> AsyncIterator[Gateway]:
    """A gateway on a migrated database."""
    database = await Database.open(DatabaseSettings(spool=spool), url, application="bench")
    writer = await TurnWriter.open(database)
    try:
        yield Gateway(database, writer)
    finally:
        await writer.close()
        await database.close()
