"""Where a request belongs among stored turns."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from gateway.records.generation import FinishReason
from gateway.records.request import TurnKind


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored turn that a request may continue, or ask for again.

    `echo` is the key of `resolve.echoes` that found it, `user` the person its session is of,
    `parent_session_id` the session which that one was forked or called from. `grammar`: its reply
    had a form that was enforced; `max_tokens` bounded it.
    """

    turn_id: UUID
    session_id: UUID
    lineage_id: UUID
    chain_hash: bytes
    depth: int
    message_count: int
    kind: TurnKind
    tools_hash: bytes
    finish_reason: FinishReason
    continued: bool
    created_at: float
    parent_id: UUID | None = None
    request_hash: bytes = b""
    idempotency_key: str | None = None
    delivered: bool = True
    echo: str | None = None
    user: str | None = None
    parent_session_id: UUID | None = None
    grammar: bool = False
    max_tokens: int | None = None


class Resolution(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which session and parent turn a request belongs to, and the rule that said so.

    `session_id` None opens a session. The messages from `new_from` on follow the parent's reply
    (all of them at a root). `branch_reason` is why the parent's ids cannot be extended, as far
    as the messages tell, or why there is no parent; None is the normal case. `ambiguous`: other
    turns matched as well. `beside_tools`: the session that was named has turns with tools.
    `parent_session_id`: the session that this one was forked or called from, `called` if it was
    by a tool call that is not answered yet. `beside`: the same was asked before, and what it was
    asked over went on without it.
    """

    session_id: UUID | None
    parent: Candidate | None
    rule: str
    new_from: int = 0
    branch_reason: str | None = None
    ambiguous: bool = False
    beside_tools: bool = False
    parent_session_id: UUID | None = None
    called: bool = False
    beside: bool = False


class Trail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All ids of a turn, put together from its chain.

    `prompt_ids` [P] is what the engine saw, `sampled_ids` [R] what it sampled.
    """

    turn_id: UUID
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    finish_reason: FinishReason
