"""One tool call at most, without a grammar: sampling stops where the first call ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway
from tests.tiny_model import TEMPLATE, make_model

ASK = [{"role": "user", "content": "The quick brown fox?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


@pytest.fixture
async def calling(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model writes calls as Qwen's do."""
    model = make_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{#- writes <tool_call> -#}\n" + TEMPLATE)
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, tmp_path))
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("parallel", "cities"), [(False, ["Oslo"]), (True, ["Oslo", "Paris"])])
async def test_calls(calling: Gateway, stream: bool, parallel: bool, cities: list[str]) -> None:
    calling.says("\n".join(CALL % city for city in ("Oslo", "Paris")))
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": ASK,
        "tools": TOOLS,
        "parallel_tool_calls": parallel,
    }
    async with calling.client() as client:
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                reply: Any = await events.get_final_completion()
        else:
            reply = await client.chat.completions.create(**asked)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    arguments = [call.function.arguments for call in choice.message.tool_calls]
    assert arguments == [f'{{"city": "{city}"}}' for city in cities]
    params = calling.engine.requests[-1]["sampling_params"]
    assert params.get("stop", []) == ([] if parallel else ["</tool_call>"])
    assert "structural_tag" not in params
    [turn] = await calling.rows("SELECT trainable, stream_mismatch FROM turns")
    assert (turn["trainable"], turn["stream_mismatch"]) == (True, False)


async def test_a_forced_call_is_asked_of_the_engine(calling: Gateway) -> None:
    calling.says(CALL % "Oslo")
    async with calling.client() as client:
        reply: Any = await client.chat.completions.create(
            model="tiny",
            messages=ASK,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice="required",
        )
    assert "get_weather" in calling.engine.requests[-1]["sampling_params"]["structural_tag"]
    assert reply.choices[0].finish_reason == "tool_calls"
    [turn] = await calling.rows("SELECT trainable, untrainable_reason FROM turns")
    assert (turn["trainable"], turn["untrainable_reason"]) == (False, "grammar")
