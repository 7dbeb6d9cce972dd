"""What an agent asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from gateway.records.message import Message
from gateway.records.sampling import Sampling


class TurnKind(StrEnum):
    MAIN = "main"
    SIDE = "side"
    UNKNOWN = "unknown"


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of an agent, whatever its dialect, checked and in one form.

    `session_name` and `declared_kind` are what the client says of itself; None where it is
    silent, which is the normal case; `parent_session_name` is the session that a sub-agent was
    called from, `marker` the kind of call beside the main line that its headers reveal.
    `turn_type` is the client's own word for the call, as sent.
    `tool_choice` is `auto`, `none` (tools are shown, calls are text) or `required`, which the
    engine enforces: a call of one of the `allowed_tools`, of any where none is named. Without
    `parallel_tool_calls` a reply has one call at most.
    `call_prefix` begins the ids of tool calls. With `shorten`, a reply is cut to what the context
    leaves where more was allowed; without, such a request is refused.
    `group_name` names the task that a rollout is an attempt at.
    `previous_turn` is the stored turn that the client continues by its id; `store` whether it may
    do so with this one. `prompt_ids` [P] is a prompt to be taken as it stands, without a template;
    `messages` then only say what it was. `stop_token_ids` are those that the client names itself.
    `response_fields` is what is stored of the request for those who read its response by its id.
    `echo` is for the dialect's own encoder alone. `hash_key` goes into every hash of the messages.
    """

    dialect: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False
    include_usage: bool = False
    tool_choice: str = "auto"
    allowed_tools: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    call_prefix: str = "call_"
    shorten: bool = False
    choices: int = 1
    top_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    session_name: str | None = None
    parent_session_name: str | None = None
    marker: str = ""
    declared_kind: TurnKind | None = None
    turn_type: str = ""
    session_done: bool = False
    retry_count: int = 0
    idempotency_key: str | None = None
    group_name: str | None = None
    user: str | None = None
    client: str = ""
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    previous_turn: UUID | None = None
    store: bool = True
    response_fields: Mapping[str, Any] | None = None
    prompt_ids: tuple[int, ...] | None = None
    echo: Mapping[str, Any] = msgspec.field(default_factory=dict)
    hash_key: bytes = b""
