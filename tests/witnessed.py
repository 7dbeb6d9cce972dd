"""A gateway over the real engine, watched on both sides, and what is stored held against both.

What a client was told is read by code of its own (`players`), from the bytes that it was sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import EngineSettings, Settings
from tests.fixtures_clients import TURNS
from tests.proof.sessions.audit import Tree, ids_of
from tests.proof.sessions.players import Said, player
from tests.proof.sessions.witness import Exchange as Generation
from tests.proof.sessions.witness import Witness
from tests.recorder import Exchange, Recorder, recording
from tests.running import Gateway, as_stored, gateway_values, make_keys, running_gateway

#: The dialect of each path, as `players` name them.
_PATHS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}

#: What each way to end is called in the dialects of turns.
_ENDS = {
    "openai_chat": {"tool_calls": "tool_calls", "length": "length", "stop": "stop"},
    "openai_responses": {"tool_calls": "completed", "length": "incomplete", "stop": "completed"},
    "anthropic_messages": {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"},
}


@dataclass(kw_only=True)
class Witnessed(Gateway):
    """`recorder.url` is what clients are given, `witness` sees what goes to the engine."""

    recorder: Recorder
    witness: Witness

    async def turns(self) -> list[dict[str, Any]]:
        return await self.rows(TURNS)


@asynccontextmanager
async def witnessed(
    database_url: str, model: Path, engine_url: str, home: Path, /, **changed: Any
) -> AsyncIterator[Witnessed]:
    """Settings that are `changed` stand in place of those that tests share."""
    async with Witness(engine_url) as witness:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, model, witness.url, home) | changed
        # Long prompts take their time on a busy machine.
        values["engines"] = (EngineSettings(name="engine", url=witness.url, idle_timeout_s=300),)
        async with (
            running_gateway(Settings(**values), keys) as running,
            recording(running.url) as recorder,
        ):
            yield Witnessed(
                url=running.url,
                keys=keys,
                services=running.services,
                recorder=recorder,
                witness=witness,
            )
    assert recorder.outside == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A reply as a client got it: (ids of the prompt, ids of the reply) in `usage`."""

    said: Said
    end: str
    usage: tuple[int, int]


async def checked(gateway: Witnessed) -> list[dict[str, Any]]:
    """All turns, each as the engine sampled it and as its client was told of it."""
    turns = await gateway.turns()
    tree = Tree(turns)
    # What follows the turn's id in a request's tells attempts apart.
    given = {rid[:32]: generation for rid, generation in gateway.witness.exchanges.items()}
    replies = [told(exchange) for exchange in gateway.recorder.exchanges if _asks(exchange)]
    heard = {reply.said.id: reply for reply in replies}
    assert sorted(given) == sorted(heard) == [turn["id"].hex for turn in turns]
    for turn in turns:
        _is_sampled(turn, tree.prompt(turn), given[turn["id"].hex])
        _is_told(turn, heard[turn["id"].hex])
    return turns


def told(exchange: Exchange) -> Told:
    """What an answer of status 200 says."""
    assert exchange.status == 200, exchange.answer
    path = exchange.path.partition("?")[0]
    dialect = _PATHS[path]
    text = exchange.answer.decode()
    client = player(dialect)
    if not json.loads(exchange.body).get("stream"):
        whole = json.loads(text)
        return Told(said=client.read(whole), end=_end(whole), usage=_usage(whole["usage"]))
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if dialect == "messages":
        [start] = [event["message"] for event in events if event["type"] == "message_start"]
        [last] = [event for event in events if event["type"] == "message_delta"]
        end, usage = last["delta"]["stop_reason"], start["usage"] | last["usage"]
    elif dialect == "responses":
        end, usage = _end(events[-1]["response"]), events[-1]["response"]["usage"]
    else:
        [end] = [_end(event) for event in events if event["choices"] and _end(event)]
        [usage] = [event["usage"] for event in events if event.get("usage")]
    return Told(said=client.read(client.put_together(events)), end=end, usage=_usage(usage))


def _asks(exchange: Exchange) -> bool:
    return exchange.method == "POST" and exchange.path.partition("?")[0] in _PATHS


def _end(reply: Mapping[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["finish_reason"] or "")
    return str(reply["stop_reason"] if "stop_reason" in reply else reply["status"])


def _usage(usage: Mapping[str, Any]) -> tuple[int, int]:
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("cache_read_input_tokens") or 0
    return usage["input_tokens"] + cached, usage["output_tokens"]


def _is_sampled(turn: Mapping[str, Any], prompt: list[int], generation: Generation) -> None:
    events = generation.events()
    ids = [id_ for event in events for id_ in event["output_ids"]]
    scored = [one for event in events for one in event["meta_info"]["output_token_logprobs"]]
    assert generation.body["input_ids"] == prompt
    assert ids_of(turn["sampled_ids"]) == ids == [id_ for _, id_, _ in scored]
    assert turn["logprobs"] == struct.pack(f"<{len(ids)}f", *(value for value, _, _ in scored))
    assert (turn["prompt_len"], turn["completion_len"]) == (len(prompt), len(ids))
    assert len(ids) > 0
    assert turn["spans"] == [[0, 0, len(ids)]]
    assert (turn["version_min"], turn["version_max"]) == (0, 0)


def _is_told(turn: Mapping[str, Any], reply: Told) -> None:
    assert turn["stream_mismatch"] is False
    assert reply.usage == (turn["prompt_len"], turn["completion_len"])
    stored, said = turn["reply"], reply.said
    assert reply.end == _ENDS[turn["dialect"]][turn["finish_reason"]]
    calls = [(call["id"], call["function"]["name"]) for call in stored.get("tool_calls") or ()]
    assert list(said.calls) == calls
    assert as_stored(said.text) == (stored["content"] or "")
    assert as_stored(said.reasoning) == (stored.get("reasoning_content") or "")
