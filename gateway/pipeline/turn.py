"""What was served, as the record that is stored."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from gateway.errors import StoreError
from gateway.pipeline.media import SHOWN
from gateway.pipeline.place import Place
from gateway.pipeline.prompt import Prompt
from gateway.records import (
    FILTERED,
    INSTRUCTIONS,
    REFUSED,
    SAME_TOOLS,
    Candidate,
    Delta,
    Finish,
    FinishReason,
    Media,
    Principal,
    Ranked,
    Reply,
    Role,
    Sampling,
    Timings,
    ToolCall,
    TurnRecord,
    TurnRequest,
    Usage,
)
from gateway.resolve import chained, echoes_of
from gateway.resolve.chain import HALF
from gateway.store.packing import pack_top
from gateway.telemetry.tracing import Context

#: Why nothing that an engine gives as text can be trained on.
TEXT_ONLY = "no_token_ids"
#: Likeliest tokens that are stored of a turn: about 10 bytes each.
_MOST_RANKED = 16_384


class Call(msgspec.Struct, kw_only=True):
    """One request in its place: what all its choices share.

    `clock` is its arrival by `time.perf_counter`, `unsettled` how many choices have neither been
    stored nor given up, `media` the images and audio of the whole conversation, `client` the span
    of its client that it belongs to.
    """

    principal: Principal
    request: TurnRequest
    place: Place
    created_at: float
    clock: float
    unsettled: int
    media: tuple[Media, ...] = ()
    client: Context | None = None


class Sampled(msgspec.Struct, kw_only=True):
    """What has come from the engine so far; `streamed` is what it showed, if it was `watched`.

    `first_token_at` is by `time.perf_counter`.
    """

    ids: list[int] = []
    logprobs: list[float] = []
    top: list[Ranked] = []
    kept: list[Sequence[int]] = []
    streamed: list[Delta] = []
    first_token_at: float | None = None
    watched: bool = True


def joined(deltas: Sequence[Delta]) -> Reply:
    """The reply that a client has put together from its deltas."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if delta.call_index is None:
            continue
        call = calls.get(delta.call_index, ToolCall(id="", name="", arguments=""))
        calls[delta.call_index] = replace(
            call,
            id=call.id or delta.call_id or "",
            name=call.name or delta.call_name or "",
            arguments=call.arguments + delta.arguments,
        )
    return Reply(
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(calls[index] for index in sorted(calls)),
    )


def untrainable(
    sampled: Sampled, finish: Finish, sampling: Sampling, media: Sequence[Media] = ()
) -> str | None:
    """Why no gradient may come from these tokens, or None."""
    if finish.reason is FinishReason.ABORT:
        return "aborted"
    if finish.detail in (TEXT_ONLY, FILTERED, REFUSED):
        return TEXT_ONLY
    if not sampled.ids:
        return "nothing_sampled"
    if len(sampled.ids) != len(sampled.logprobs):
        return "length_mismatch"
    if finish.detail is not None:
        return finish.detail
    if not all(map(math.isfinite, sampled.logprobs)):
        return "logprob_not_finite"
    if not finish.spans or finish.spans[-1].end != len(sampled.ids):
        return "versions_unknown"
    if media:
        return SHOWN
    if sampled.kept and not _among(sampled):
        return "kept_set_mismatch"
    return sampling.untrainable(kept=bool(sampled.kept))


def _among(sampled: Sampled) -> bool:
    """Whether each token is one of those that it is said to have been sampled from."""
    ids, kept = sampled.ids, sampled.kept
    return len(ids) == len(kept) and all(id_ in row for id_, row in zip(ids, kept, strict=True))


def turn_record(
    call: Call,
    *,
    turn_id: UUID,
    prompt: Prompt,
    sampling: Sampling,
    sampled: Sampled,
    finish: Finish,
    reply: Reply,
    reasoning_tokens: int,
    engine: str,
    queued_until: float,
) -> TurnRecord:
    """The turn, exactly as sampled: nothing is padded, re-tokenized or left out.

    It was asked of an engine at `queued_until`, by `time.perf_counter`.

    Choices of one request are siblings: what groups them is an equal request hash, parent,
    session and time of creation.
    """
    principal, request, place = call.principal, call.request, call.place
    resolution = place.resolution
    parent = resolution.parent
    began, first = call.clock, sampled.first_token_at
    message = reply.stored() if reply.order else reply.message()
    reason = untrainable(sampled, finish, sampling, call.media)
    usage = finish.usage or Usage(
        prompt_tokens=(finish.prompt_tokens if call.media else None) or len(prompt.ids),
        completion_tokens=len(sampled.ids),
        cached_tokens=finish.cached_tokens,
        reasoning_tokens=reasoning_tokens,
    )
    finish_reason = finish.reason
    if finish_reason is FinishReason.STOP and reply.tool_calls:
        finish_reason = FinishReason.TOOL_CALLS
    return TurnRecord(
        id=turn_id,
        tenant_id=principal.tenant_id,
        session_id=place.session.id,
        lineage_id=principal.lineage_id,
        parent_id=parent.turn_id if parent else None,
        depth=parent.depth + 1 if parent else 0,
        branch_reason=prompt.branch_reason,
        retry_of=place.retry_of,
        kind=place.kind.kind,
        kind_rule=place.kind.rule,
        kind_confidence=place.kind.confidence,
        resolve_rule=resolution.rule,
        dialect=request.dialect,
        model=request.model,
        engine=engine,
        request_hash=place.request_hash,
        chain_hash=chained(place.chain, message, request.hash_key),
        message_count=len(request.messages) + 1,
        messages=tuple(request.messages[resolution.new_from :]),
        tools=SAME_TOOLS
        if parent is not None and _offered_before(request, parent, place.head)
        else request.tools,
        tools_hash=place.head,
        reply=message,
        shared_len=prompt.shared_len,
        prompt_ids=prompt.ids[prompt.shared_len :],
        sampled_ids=sampled.ids,
        logprobs=sampled.logprobs,
        kept=sampled.kept or None,
        spans=finish.spans,
        sampling=sampling,
        idempotency_key=request.idempotency_key,
        # Of an agent it would only be a name that its users' requests happen to share.
        group_id=request.group_name if principal.role is Role.ROLLOUT else None,
        delivered=finish_reason is not FinishReason.ABORT,
        response_store=request.store,
        response_fields=None
        if request.response_fields is None
        else _to_repeat(request.response_fields, parent, place.head, usage, sampled.top),
        # A prompt's text is no conversation that a chat could echo.
        echoes=echoes_of(
            request.messages,
            message,
            place.seed,
            place.head if parent is not None and parent.tools_hash != place.head else None,
            place.voices,
        )
        if request.prompt_ids is None
        else (),
        finish_reason=finish_reason,
        finish_detail=finish.detail,
        trainable=reason is None,
        untrainable_reason=reason,
        stream_mismatch=sampled.watched
        and finish_reason is not FinishReason.ABORT
        and joined(sampled.streamed) != replace(reply, order=()),
        usage=usage,
        reasoning_tokens=usage.reasoning_tokens,
        timings=Timings(
            queued_ms=(queued_until - began) * 1e3,
            first_token_ms=None if first is None else (first - began) * 1e3,
            total_ms=(time.perf_counter() - began) * 1e3,
        ),
        created_at=call.created_at,
    )


def _to_repeat(
    asked: Mapping[str, Any],
    parent: Candidate | None,
    head: bytes,
    usage: Usage,
    top: Sequence[Ranked],
) -> dict[str, Any]:
    """What is stored for those who read the response again.

    Instructions stand once, at the turn that they were new at: in the messages of a first turn.
    The usage is what was told: media, engines of text and redaction leave other lengths. The
    likeliest tokens are there where they were asked for, unless they are too many.
    """
    fields = {**asked, "usage": [usage.prompt_tokens, usage.completion_tokens]}
    if top and sum(map(len, top)) <= _MOST_RANKED:
        with contextlib.suppress(StoreError):
            fields["top"] = pack_top(top)
    before = parent is None or parent.tools_hash[:HALF] == head[:HALF]
    if before and fields.get(INSTRUCTIONS):
        fields[INSTRUCTIONS] = True
    return fields


def _offered_before(request: TurnRequest, parent: Candidate, head: bytes) -> bool:
    """Whether the tools are the very ones that the parent's request offered."""
    return bool(request.tools) and parent.tools_hash[HALF:] == head[HALF:]
