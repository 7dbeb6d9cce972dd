"""Holds what is stored against what the engine was given and said, with code of its own.

Prompts are put together again from the rows, numbers are compared as bytes, and the engine and
another implementation of the model score the stored ids once more.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import aiohttp

from tests.proof.sessions.play import Played
from tests.proof.sessions.witness import Exchange

#: Nats between a log-probability sampled with a cache and the same scored as one prompt: float32
#: sums in another order.
TOLERANCE = 2e-4

#: Log-probabilities [len(ids) - 1] of ids[1:] at a temperature, by another implementation.
Reference = Callable[[Sequence[int], float], Sequence[float]]

Row = Mapping[str, Any]


@dataclass
class Findings:
    """`silent` are trainable turns that are not exact: there must be none."""

    counts: Counter[str] = field(default_factory=Counter)
    untrainable: Counter[str] = field(default_factory=Counter)
    branches: Counter[str] = field(default_factory=Counter)
    dialects: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    worst_rescore: float = 0.0
    worst_reference: float = 0.0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in values.items()
        }

    def add(self, other: Findings) -> None:
        for name in ("counts", "untrainable", "branches", "dialects", "finishes"):
            getattr(self, name).update(getattr(other, name))
        self.silent += other.silent
        self.wrong += other.wrong
        self.worst_rescore = max(self.worst_rescore, other.worst_rescore)
        self.worst_reference = max(self.worst_reference, other.worst_reference)


def ids_of(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


class Tree:
    """Prompts of stored turns, from their own rows up to the root."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row["id"]: row for row in rows}
        self._whole: dict[Any, tuple[list[int], list[int]]] = {}

    def prompt(self, row: Row) -> list[int]:
        return self._of(row["id"])[0]

    def _of(self, id_: Any) -> tuple[list[int], list[int]]:
        path = []
        at = id_
        while at not in self._whole:
            row = self._rows[at]
            path.append(row)
            if row["shared_len"] == 0:
                break
            at = row["parent_id"]
        for row in reversed(path):
            shared = row["shared_len"]
            before: list[int] = []
            if shared:
                prompt, sampled = self._whole[row["parent_id"]]
                before = [*prompt, *sampled][:shared]
                assert len(before) == shared, f"{row['id']} shares more than its parent has"
            self._whole[row["id"]] = (
                before + ids_of(row["prompt_ids"]),
                ids_of(row["sampled_ids"]),
            )
        return self._whole[id_]


async def audit(
    rows: Sequence[Row],
    exchanges: Mapping[str, Exchange],
    played: Played,
    engine_url: str,
    reference: Reference,
    *,
    last_id: int,
) -> Findings:
    """`last_id` is the vocabulary's, which the engine names 0 where it scores."""
    findings, tree = Findings(), Tree(rows)
    # A later attempt stands in for one that was refused.
    seen = {rid[:32]: exchange for rid, exchange in exchanges.items()}
    findings.counts["turns stored"] = len(rows)
    findings.counts["generations"] = len(seen)
    stored = {row["id"].hex for row in rows}
    findings.wrong += [f"generation {rid} is not stored" for rid in seen.keys() - stored]
    findings.wrong += [f"no engine was asked for {id_}" for id_ in stored - seen.keys()]
    matched = [
        (row, tree.prompt(row), seen[row["id"].hex]) for row in rows if row["id"].hex in seen
    ]
    scored = await _all_scored(
        engine_url, [[*prompt, *ids_of(row["sampled_ids"])] for row, prompt, _ in matched]
    )
    for (row, prompt, exchange), again in zip(matched, scored, strict=True):
        _count(findings, row, exchange)
        problems = _compared(row, prompt, exchange, findings, last_id)
        problems += _shown(row, played, findings)
        if not problems or row["trainable"]:
            problems += _rescored(row, prompt, again, findings, last_id)
        if row["trainable"]:
            problems += await asyncio.to_thread(_referred, row, prompt, reference, findings)
        _judge(findings, row, exchange, problems)
    return findings


def _judge(findings: Findings, row: Row, exchange: Exchange, problems: list[str]) -> None:
    told = f"{row['id']} ({row['untrainable_reason']}): {'; '.join(problems)}"
    if problems and row["trainable"]:
        findings.silent.append(told)
    elif problems and not exchange.damaged:
        findings.wrong.append(told)
    elif problems:
        findings.counts["damaged turns that say so"] += 1
    elif exchange.damaged:
        findings.counts["damaged turns that were exact all the same"] += 1
    else:
        findings.counts["turns exact to the byte"] += 1


def _count(findings: Findings, row: Row, exchange: Exchange) -> None:
    findings.dialects[row["dialect"]] += 1
    findings.finishes[row["finish_reason"]] += 1
    findings.counts["trainable" if row["trainable"] else "untrainable"] += 1
    if not row["trainable"]:
        findings.untrainable[row["untrainable_reason"]] += 1
    if row["branch_reason"]:
        findings.branches[row["branch_reason"]] += 1
    if row["parent_id"] is None:
        findings.counts["roots"] += 1
    elif row["branch_reason"] is None:
        findings.counts["prompts that extend recorded ids"] += 1
    else:
        findings.counts["prompts rendered in full beside a parent"] += 1
    findings.counts["retries"] += row["retry_of"] is not None
    findings.counts["replies with tool calls"] += bool(row["reply"].get("tool_calls"))
    findings.counts["replies with several calls"] += len(row["reply"].get("tool_calls") or ()) > 1
    findings.counts["replies with reasoning"] += bool(row["reply"].get("reasoning_content"))
    findings.counts["sampled tokens"] += row["completion_len"]
    findings.counts["prompt tokens"] += row["prompt_len"]
    findings.counts["prompt tokens stored"] += row["prompt_len"] - row["shared_len"]
    findings.counts["prompt tokens from the engine's cache"] += row["cached_tokens"]
    findings.counts["streams between gateway and engine"] += exchange.status == 200


def _compared(
    row: Row, prompt: list[int], exchange: Exchange, findings: Findings, last_id: int
) -> list[str]:
    """What differs between the row and the exchange's own bytes."""
    problems = []
    body, events = exchange.body, exchange.events()
    if body["input_ids"] != prompt or row["prompt_len"] != len(prompt):
        problems.append("the prompt is not what the engine was given")
    last = events[-1]["meta_info"]
    if last["prompt_tokens"] != len(prompt):
        problems.append(f"the engine saw {last['prompt_tokens']} ids, {len(prompt)} are stored")
    if body.get("logprob_start_len") == 0:
        entries = next(
            (
                found
                for event in events
                if (found := event["meta_info"].get("input_token_logprobs"))
            ),
            [],
        )
        if [token for _, token, _ in entries] != _as_told(prompt, last_id):
            problems.append("the prompt is not what the engine says that it saw")
        findings.counts["prompts told by the engine itself"] += 1
    sampled = [id_ for event in events for id_ in event["output_ids"]]
    values = [
        value for event in events for value, _, _ in event["meta_info"]["output_token_logprobs"]
    ]
    if struct.pack(f"<{len(sampled)}i", *sampled) != row["sampled_ids"]:
        problems.append("the sampled ids are not the engine's")
    if None in values or struct.pack(f"<{len(values)}f", *values) != row["logprobs"]:
        problems.append("the log-probabilities are not the engine's")
    if len(sampled) != row["completion_len"] or len(values) != row["completion_len"]:
        problems.append("the lengths differ")
    spans = row["spans"]
    starts = [0, *(end for _, _, end in spans)]
    if [start for _, start, _ in spans] != starts[:-1] or starts[-1] != row["completion_len"]:
        problems.append("the versions do not cover the reply")
    return problems


def _as_told(ids: Sequence[int], last_id: int) -> list[int]:
    """Input ids as the engine names them: it calls the last one of the vocabulary 0."""
    return [0 if id_ == last_id else id_ for id_ in ids]


def _shown(row: Row, played: Played, findings: Findings) -> list[str]:
    """Whether the client read what is stored of the reply."""
    if row["stream_mismatch"]:
        return ["the stream and the whole reply differ"]
    said = played.said.get(row["id"].hex)
    if said is None:
        return []
    findings.counts["replies compared with what the client read"] += 1
    reply = row["reply"]
    calls = [(call["id"], call["function"]["name"]) for call in reply.get("tool_calls") or ()]
    stored = (_plain(reply.get("content")), _plain(reply.get("reasoning_content")), calls)
    read = (_plain(said.text), _plain(said.reasoning), list(said.calls))
    if row["dialect"] in ("openai_chat", "anthropic_messages", "openai_responses"):
        return [] if stored == read else [f"stored {stored}, the client read {read}"]
    return [] if stored[0] == read[0] else [f"stored {stored[0]!r}, the client read {read[0]!r}"]


def _plain(text: str | None) -> str:
    # PostgreSQL has no NUL in text; what stands for it is the store's own, documented form.
    return (text or "").replace("\0", "\ufffd")


async def _all_scored(
    engine_url: str, sequences: Sequence[list[int]]
) -> list[list[tuple[float | None, int]]]:
    """(log-probability at temperature 1, id) of every id, as the engine says them."""
    places = asyncio.Semaphore(4)
    # Kept connections may be closed by the engine just as they are used again.
    fresh = aiohttp.TCPConnector(force_close=True)
    limit = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=limit, connector=fresh) as http:

        async def scored(ids: list[int]) -> list[tuple[float | None, int]]:
            body = {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": 0,
            }
            async with places, http.post(f"{engine_url}/generate", json=body) as answer:
                said = await answer.json()
                assert answer.status == 200, said
            entries = said["meta_info"]["input_token_logprobs"]
            return [(value, token) for value, token, _ in entries]

        return await asyncio.gather(*map(scored, sequences))


def _rescored(
    row: Row,
    prompt: list[int],
    scored: Sequence[tuple[float | None, int]],
    findings: Findings,
    last_id: int,
) -> list[str]:
    ids = [*prompt, *ids_of(row["sampled_ids"])]
    if [token for _, token in scored] != _as_told(ids, last_id):
        return ["scored, the ids are others"]
    sampling = row["sampling"]
    changed = any(sampling.get(name) for name in ("logit_bias", "presence_penalty", "grammar"))
    if sampling["temperature"] not in (0, 1) or changed:
        return []
    stored = array("f", row["logprobs"])
    again = [value for value, _ in scored[len(prompt) :]]
    worst = max((abs(a - (b or 0)) for a, b in zip(stored, again, strict=True)), default=0.0)
    findings.counts["turns scored again at temperature 1"] += 1
    findings.worst_rescore = max(findings.worst_rescore, worst)
    return [] if worst <= TOLERANCE else [f"scored again, a token differs by {worst:.2g} nats"]


def _referred(row: Row, prompt: list[int], reference: Reference, findings: Findings) -> list[str]:
    stored = array("f", row["logprobs"])
    ids = [*prompt, *ids_of(row["sampled_ids"])]
    theirs = reference(ids, row["sampling"]["temperature"])[len(prompt) - 1 :]
    worst = max((abs(a - b) for a, b in zip(stored, theirs, strict=True)), default=0.0)
    findings.counts["turns scored by another implementation"] += 1
    findings.worst_reference = max(findings.worst_reference, worst)
    return [] if worst <= TOLERANCE else [f"by another implementation {worst:.2g} nats differ"]
