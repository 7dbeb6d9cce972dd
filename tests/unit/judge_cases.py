"""Labelled turns from `tests/data/judge_cases.jsonl`, as evidence.

A row: `request` (a user's words or messages), `reply` (text or a message), `next` (messages),
`score` and `rule` that the rules should come to (null: left to a judge that reads, whose score is
`reads` where people would agree on one), optionally `finish`, `feedback` and `how`
(`rolled_back`: `next` took the place of `request`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.records import FeedbackRecord, FinishReason
from judge.verdicts import Evidence

PATH = Path(__file__).parents[1] / "data" / "judge_cases.jsonl"


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PATH.read_text().splitlines()]


def evidence(row: dict[str, Any]) -> Evidence:
    request, reply = row["request"], row["reply"]
    return Evidence(
        request=({"role": "user", "content": request},)
        if isinstance(request, str)
        else tuple(request),
        reply={"role": "assistant", "content": reply} if isinstance(reply, str) else reply,
        next_state=tuple(row["next"]),
        feedback=tuple(
            FeedbackRecord(id=UUID(int=i), tenant_id=UUID(int=0), turn_id=UUID(int=0), **record)
            for i, record in enumerate(row.get("feedback", []))
        ),
        finish_reason=FinishReason(row.get("finish", "stop")),
        discarded=row.get("how") == "rolled_back",
    )
