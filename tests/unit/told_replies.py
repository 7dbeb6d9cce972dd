"""Deltas in which a reply may be told, in every order that a family of models may choose."""

from __future__ import annotations

from hypothesis import strategies as st

from gateway.records import Delta

_SAID = st.sampled_from(["a", "é", "🙂 ", "\n", "Hi"])


@st.composite
def told(draw: st.DrawFn) -> list[Delta]:
    """Reasoning, text and calls in any order; arguments follow their call at once."""
    deltas: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["reasoning", "text", "both", "call"]), max_size=8)):
        if kind == "call":
            deltas.append(Delta(call_index=calls, call_id=f"c{calls}", call_name="f"))
            arguments = draw(st.sampled_from([[], ["{}"], ['{"a"', ": 1}"]]))
            deltas += [Delta(call_index=calls, arguments=piece) for piece in arguments]
            calls += 1
        else:
            reasoning = "" if kind == "text" else draw(_SAID)
            deltas.append(
                Delta(reasoning=reasoning, text="" if kind == "reasoning" else draw(_SAID))
            )
    return deltas
