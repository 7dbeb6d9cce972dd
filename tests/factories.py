"""Records with sensible values, for tests to vary."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from uuid import UUID

from gateway.records import (
    FinishReason,
    NextState,
    Sampling,
    SessionRecord,
    Timings,
    TurnKind,
    TurnRecord,
    Usage,
    VersionSpan,
    new_id,
)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def session(**values: Any) -> SessionRecord:
    return SessionRecord(
        **{
            "id": new_id(),
            "tenant_id": new_id(),
            "key_id": new_id(),
            "lineage_id": new_id(),
            "external_id": None,
            "resolved_by": "new",
            "model": "nextstate",
            "seen_at": time.time(),
            **values,
        }
    )


def turn(of: SessionRecord, parent: TurnRecord | None = None, **values: Any) -> TurnRecord:
    """A trainable main-line turn of four sampled tokens; a child shares all of its parent's ids."""
    turn_id: UUID = values.pop("id", None) or new_id()
    shared = 0
    if parent is not None:
        shared = parent.shared_len + len(parent.prompt_ids) + len(parent.sampled_ids)
    return TurnRecord(
        **{
            "id": turn_id,
            "tenant_id": of.tenant_id,
            "session_id": of.id,
            "lineage_id": of.lineage_id,
            "parent_id": parent.id if parent else None,
            "depth": parent.depth + 1 if parent else 0,
            "branch_reason": None,
            "retry_of": None,
            "kind": TurnKind.MAIN,
            "kind_rule": "header",
            "kind_confidence": 1.0,
            "resolve_rule": "new",
            "dialect": "openai_chat",
            "model": "nextstate",
            "engine": "sglang-0",
            "request_hash": digest(f"request {turn_id}"),
            "chain_hash": digest(f"chain {turn_id}"),
            "message_count": 2 + (parent.message_count if parent else 0),
            "messages": ({"role": "user", "content": "Hello?"},),
            "tools_hash": digest("tools"),
            "reply": {"role": "assistant", "content": "Hello."},
            "shared_len": shared,
            "prompt_ids": (1, 2, 3),
            "sampled_ids": (10, 11, 12, 13),
            "logprobs": (-0.5, -1.0, -0.25, -2.0),
            "spans": (VersionSpan(version=3, start=0, end=4),),
            "sampling": Sampling(temperature=1.0, top_p=1.0, max_tokens=64),
            "finish_reason": FinishReason.STOP,
            "trainable": True,
            "untrainable_reason": None,
            "usage": Usage(prompt_tokens=3, completion_tokens=4),
            "timings": Timings(total_ms=12.5),
            "created_at": time.time(),
            **values,
        }
    )


def next_state(of: TurnRecord, **values: Any) -> NextState:
    return NextState(
        **{
            "turn_id": of.id,
            "tenant_id": of.tenant_id,
            "following_id": new_id(),
            "messages": ({"role": "user", "content": "Thanks!"},),
            "role": "user",
            "arrived_at": time.time(),
            **values,
        }
    )
