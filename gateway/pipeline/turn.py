"""What was served, as the record that is stored."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from gateway.pipeline.place import Place
from gateway.pipeline.prompt import Prompt
from gateway.records import (
    Delta,
    Finish,
    FinishReason,
    Principal,
    Ranked,
    Reply,
    Sampling,
    Timings,
    ToolCall,
    TurnRecord,
    TurnRequest,
    Usage,
)
from gateway.resolve import chain, echoes_of, head_hash

#: Why nothing that an engine gives as text can be trained on.
TEXT_ONLY = "no_token_ids"


@dataclass(slots=True, kw_only=True)
class Call:
    """One request in its place: what all its choices share.

    `clock` is its arrival by `time.perf_counter`, `unsettled` how many choices have neither been
    stored nor given up.
    """

    principal: Principal
    request: TurnRequest
    place: Place
    created_at: float
    clock: float
    unsettled: int

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.clock) * 1e3


@dataclass(slots=True, kw_only=True)
class Sampled:
    """What has come from the engine so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Ranked] = field(default_factory=list)
    streamed: list[Delta] = field(default_factory=list)
    first_token_ms: float | None = None


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


def untrainable(sampled: Sampled, finish: Finish, sampling: Sampling) -> str | None:
    """Why no gradient may come from these tokens, or None."""
    if finish.reason is FinishReason.ABORT:
        return "aborted"
    if finish.detail == TEXT_ONLY:
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
    return sampling.untrainable()


def turn_record(
    call: Call,
    *,
    turn_id: UUID,
    prompt: Prompt,
    sampling: Sampling,
    sampled: Sampled,
    finish: Finish,
    reply: Reply,
    engine: str,
    queued_ms: float,
) -> TurnRecord:
    """The turn, exactly as sampled: nothing is padded, re-tokenized or left out.

    Choices of one request are siblings: what groups them is an equal request hash, parent,
    session and time of creation.
    """
    principal, request, place = call.principal, call.request, call.place
    resolution = place.resolution
    parent = resolution.parent
    message = reply.message()
    reason = untrainable(sampled, finish, sampling)
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
        chain_hash=chain([*request.messages, message], place.seed)[-1],
        message_count=len(request.messages) + 1,
        messages=tuple(request.messages[resolution.new_from :]),
        tools=request.tools,
        tools_hash=head_hash(request.messages, request.tools),
        reply=message,
        shared_len=prompt.shared_len,
        prompt_ids=prompt.ids[prompt.shared_len :],
        sampled_ids=sampled.ids,
        logprobs=sampled.logprobs,
        spans=finish.spans,
        sampling=sampling,
        idempotency_key=request.idempotency_key,
        delivered=finish_reason is not FinishReason.ABORT,
        response_store=request.store,
        # A prompt's text is no conversation that a chat could echo.
        echoes=echoes_of(request.messages, message, place.seed)
        if request.prompt_ids is None
        else (),
        finish_reason=finish_reason,
        finish_detail=finish.detail,
        trainable=reason is None,
        untrainable_reason=reason,
        stream_mismatch=finish_reason is not FinishReason.ABORT
        and joined(sampled.streamed) != reply,
        usage=finish.usage
        or Usage(
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(sampled.ids),
            cached_tokens=finish.cached_tokens,
        ),
        timings=Timings(
            queued_ms=queued_ms,
            first_token_ms=sampled.first_token_ms,
            total_ms=call.elapsed_ms(),
        ),
        created_at=call.created_at,
    )
