"""Two calls of tools and their results, through the gateway, in the form of each family."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gateway.config import Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_families import FAMILIES, write_family

HERMES = (
    '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"city": "Bergen"}}\n</tool_call>'
)
#: What the model samples, how many of its tokens are reasoning's, and the text of that.
SAID = {
    "smollm2": HERMES,
    "qwen3": f"<think>\nTwo.\n</think>\n\n{HERMES}",
    "qwen3_thinking": f"Two.\n</think>\n\n{HERMES}",
    "llama31": (
        '{"name": "look", "parameters": {"city": "Oslo"}}; '
        '{"name": "look", "parameters": {"city": "Bergen"}}'
    ),
}
SAID["llama32"] = "<|python_tag|>" + SAID["llama31"]
ENDS = {"llama31": "<|eom_id|>", "llama32": "<|eot_id|>"}
RESULTS = {
    "smollm2": "<|im_start|>tool\n12<|im_end|>\n<|im_start|>tool\n9<|im_end|>\n",
    "llama31": (
        '<|start_header_id|>ipython<|end_header_id|>\n\n"12"<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"9"<|eot_id|>'
    ),
}
RESULTS["qwen3"] = RESULTS["qwen3_thinking"] = (
    "<|im_start|>user\n<tool_response>\n12\n</tool_response>\n"
    "<tool_response>\n9\n</tool_response><|im_end|>\n"
)
RESULTS["llama32"] = RESULTS["llama31"]
ASK: list[Any] = [{"role": "user", "content": "Where is it colder?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def gateway(family: str, database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    model = write_family(tmp_path / "model", FAMILIES[family])
    end = ENDS.get(family, "<|im_end|>")
    config = json.loads((model / "config.json").read_text())
    backend = Tokenizer.from_file(str(model / "tokenizer.json"))
    config["eos_token_id"] = backend.token_to_id(end)
    (model / "config.json").write_text(json.dumps(config))
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, tmp_path))
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


@pytest.mark.parametrize("burst", [1, 500])
async def test_two_calls_and_their_results(gateway: Gateway, family: str, burst: int) -> None:
    tokenizer = gateway.services.tokenizer
    gateway.engine.chunk_tokens = burst
    stop = tokenizer.id_of(ENDS.get(family, "<|im_end|>"))
    assert stop is not None
    gateway.engine.replies.append([*tokenizer.encode(SAID[family]), stop])
    opened = "Nine.\n</think>\n\n" if family == "qwen3_thinking" else ""
    gateway.engine.replies.append([*tokenizer.encode(opened + "In Bergen."), stop])
    async with gateway.client() as client:
        async with client.chat.completions.stream(
            model="tiny", messages=ASK, tools=TOOLS, stream_options={"include_usage": True}
        ) as events:
            first = await events.get_final_completion()
        [choice] = first.choices
        calls: list[Any] = choice.message.tool_calls or []
        assert [json.loads(call.function.arguments) for call in calls] == [
            {"city": "Oslo"},
            {"city": "Bergen"},
        ]
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        told = choice.message.to_dict() | {"tool_calls": [call.to_dict() for call in calls]}
        for call in told["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": degrees}
            for call, degrees in zip(calls, ("12", "9"), strict=True)
        ]
        second = await client.chat.completions.create(
            model="tiny", messages=[*ASK, told, *results], tools=TOOLS
        )
    assert second.choices[0].message.content == "In Bergen."
    one, two = await gateway.rows(
        "SELECT prompt_len, completion_len, shared_len, branch_reason, stream_mismatch,"
        " reasoning_tokens FROM turns ORDER BY depth"
    )
    assert (two["branch_reason"], one["stream_mismatch"]) == (None, False)
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    added = tokenizer.decode(gateway.engine.requests[1]["input_ids"][two["shared_len"] :])
    assert added.lstrip("\n").startswith(RESULTS[family])
    thought, tag, _ = SAID[family].partition("</think>")
    expected = len(tokenizer.encode(thought + tag)) if tag else 0
    assert one["reasoning_tokens"] == expected
    assert first.usage is not None
    details = first.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == expected
