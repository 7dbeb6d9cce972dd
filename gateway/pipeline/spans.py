"""The spans of a turn, made of what was measured while it was served."""

from __future__ import annotations

from uuid import UUID

from gateway.pipeline.turn import Call
from gateway.records import FinishReason, TurnRecord
from gateway.telemetry.tracing import Context, Traces, generating, of_turn


class TurnSpans:
    """`turn`, and below it `generate` and `store`."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def traceparent(self, client: Context | None, turn_id: UUID) -> str | None:
        """What the engine is told, where the turn is traced."""
        serving = self._traces.serving(turn_id, client)
        return None if serving is None else generating(serving).traceparent

    def stored(self, call: Call, turn: TurnRecord, *, ended_at: float) -> None:
        """A turn is durable, or was not taken."""
        own = of_turn(turn.id) if self._traces.samples(turn.id) else None
        serving = self._traces.serving(turn.id, call.client)
        if serving is None:
            return
        began, timings = turn.created_at, turn.timings
        sampled_at = began + timings.total_ms / 1e3
        about = _about(call, turn)
        error = turn.finish_detail if turn.finish_reason is FinishReason.ABORT else None
        self._traces.span(
            "turn",
            serving,
            parent=call.client,
            start=began,
            end=ended_at,
            attributes=about,
            links=() if own in (None, serving) else (of_turn(turn.id),),
            error=error,
            kind="SERVER",
        )
        self._traces.span(
            "generate",
            generating(serving),
            parent=serving,
            start=began + timings.queued_ms / 1e3,
            end=sampled_at,
            attributes={
                "nextstate.engine": turn.engine,
                "gen_ai.response.time_to_first_token_ms": timings.first_token_ms,
            },
            error=error,
            kind="CLIENT",
        )
        self._traces.span(
            "store", None, parent=serving, start=sampled_at, end=ended_at, attributes={}
        )
        if own is not None and own != serving:
            # What judge and trainer will stand under.
            self._traces.span(
                "turn",
                own,
                parent=None,
                start=began,
                end=ended_at,
                attributes=about,
                links=(serving,),
                error=error,
            )


def _about(call: Call, turn: TurnRecord) -> dict[str, str | int | float | bool | None]:
    """Ids, names and counts; never a word of the conversation."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": turn.model,
        "gen_ai.usage.input_tokens": turn.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": turn.usage.completion_tokens,
        "gen_ai.response.finish_reasons": str(turn.finish_reason),
        "gen_ai.conversation.id": str(turn.session_id),
        "nextstate.turn_id": str(turn.id),
        "nextstate.parent_id": None if turn.parent_id is None else str(turn.parent_id),
        "nextstate.tenant": call.principal.tenant,
        "nextstate.kind": str(turn.kind),
        "nextstate.policy_version": turn.spans[-1].version if turn.spans else None,
        "nextstate.trainable": turn.trainable,
    }
