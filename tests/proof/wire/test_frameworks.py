"""Frameworks that agents are built with: one exchange with tools in each API that they speak."""

from __future__ import annotations

from typing import Any

import pytest

from tests.exchanges import save
from tests.fixtures_clients import Served
from tests.frameworks import FRAMEWORKS, run_framework
from tests.reasoning import CALLS, DONE

FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "Warm."}}\n</tool_call>'


def answer(prompt: str) -> str:
    """Calls at first, an end once there are results; one framework ends by a call."""
    if "Zürich: 21" not in prompt:
        return CALLS
    return FINAL if '"final_answer"' in prompt else DONE


@pytest.mark.parametrize("how", ["plain", "streamed"])
@pytest.mark.parametrize(
    ("name", "api"), [(name, api) for name, (_, apis) in FRAMEWORKS.items() for api in apis]
)
async def test_an_exchange_with_tools(served: Served, name: str, api: str, how: str) -> None:
    served.answers(answer)
    seen = await run_framework(served, name, api, how)
    assert (seen["answer"], sorted(seen["ran"])) == ("Warm.", ["Oslo", "Zürich"])
    await save(served, served.recorder, f"{name}-{api}-{how}", {served.keys.agent: "KEY"})
    await check_chain(served, text=name == "smolagents")
    turns = await served.turns()
    counts = [sum(turn[name] for turn in turns) for name in ("prompt_len", "completion_len")]
    assert seen["usage"] == [2, *counts]


async def check_chain(served: Served, *, text: bool) -> None:
    """One session, one line; the second turn extends the ids of the first.

    One framework writes calls and results as `text`, so that the prompt is another one.
    """
    one, two = await served.turns()
    assert (one["parent_id"], two["parent_id"]) == (None, one["id"])
    assert one["session_id"] == two["session_id"]
    assert (one["kind"], two["kind"]) == ("main", "main")
    assert (one["stream_mismatch"], two["stream_mismatch"]) == (False, False)
    results: list[Any] = [message["content"] for message in one["followed_by"]]
    if text:
        assert one["followed_by_role"] == "user"
        [result] = results
        assert "Zürich: 21" in str(result)
        return
    assert (one["followed_by_role"], results) == ("tool", ["Zürich: 21", "Oslo: 21"])
    assert two["branch_reason"] is None
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
