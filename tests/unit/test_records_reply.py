from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from gateway.pipeline.turn import joined
from gateway.records import ORDER, Delta, Reply, ToolCall
from tests.unit.told_replies import told

CALL = ToolCall(id="c0", name="f", arguments="{}")
OPENED = Delta(call_index=0, call_id="c0", call_name="f", arguments="{}")


@given(deltas=told())
def test_parts_are_the_reply_taken_apart(deltas: list[Delta]) -> None:
    reply = joined(deltas).ordered(deltas)
    parts = reply.parts()
    assert "".join(part.text for part in parts) == reply.text
    assert "".join(part.reasoning for part in parts) == reply.reasoning
    assert tuple(call for part in parts for call in part.tool_calls) == reply.tool_calls
    for part in parts:
        assert [bool(part.text), bool(part.reasoning), len(part.tool_calls)].count(False) == 2


def test_text_after_a_call_stands_after_it() -> None:
    deltas = [Delta(reasoning="t"), Delta(text="a"), OPENED, Delta(text="b"), Delta(text="c")]
    reply = joined(deltas).ordered(deltas)
    assert reply.order == (("reasoning", 1), ("text", 1), ("call", 1), ("text", 2))
    assert reply.parts() == [
        Reply(reasoning="t"),
        Reply(text="a"),
        Reply(tool_calls=(CALL,)),
        Reply(text="bc"),
    ]
    assert reply.stored() == reply.message() | {ORDER: [list(run) for run in reply.order]}


def test_the_usual_order_is_not_told() -> None:
    deltas = [Delta(reasoning="t", text="a"), Delta(text="b"), OPENED]
    reply = joined(deltas).ordered(deltas)
    assert reply == joined(deltas)
    assert ORDER not in reply.stored()


@pytest.mark.parametrize(
    "order",
    [
        (("text", 1), ("call", 1)),
        (("call", 1), ("text", 3)),
        (("call", 1), ("text", 2), ("reasoning", 1)),
        (("text", 3), ("call", 1), ("text", -1)),
        (("call", 2), ("text", 2)),
        (("other", 2),),
    ],
)
def test_an_order_that_does_not_fit_is_left_alone(order: Any) -> None:
    reply = Reply(text="ab", tool_calls=(CALL,), order=order)
    assert reply.parts() == [Reply(text="ab"), Reply(tool_calls=(CALL,))]
