"""Teacher log-probabilities of the real engine, against a forward pass of the same weights."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.records import Generation, Lesson, PolicyKind, PolicyRef, Sampling, new_id
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer
from judge.hinted import hinted
from judge.teacher import Teacher

LINEAGE = UUID(int=9)
BASE = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE)
ASKED = ({"role": "user", "content": "What is the capital of France?"},)
HINT = "Name the country as well."

#: Two float32 forward passes of the same tiny model, by different kernels.
TOLERANCE_NATS = 2e-4

pytestmark = pytest.mark.sglang


@pytest.fixture
async def engine(sglang_url: str) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(EngineSettings(url=sglang_url))
    yield engine
    await engine.close()


@pytest.fixture
def renderer(tiny_model: Path) -> TemplateRenderer:
    return TemplateRenderer(Tokenizer.load(tiny_model))


@pytest.fixture
def forward(tiny_model: Path) -> Callable[[Sequence[int], Sequence[int]], Any]:
    """Log-probabilities [R, V] in float64 of the places of `sampled` [R] after `before`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def run(before: Sequence[int], sampled: Sequence[int]) -> Any:
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *sampled]])).logits[0].double()
        return torch.log_softmax(logits[len(before) - 1 : -1], dim=-1)

    return run


async def sampled_lesson(engine: SglangEngine, renderer: TemplateRenderer) -> Lesson:
    """Sampled at another temperature than the teacher's, without the hint."""
    prompt = renderer.render(ASKED, (), {})
    request = Generation(
        rid=new_id().hex,
        input_ids=prompt,
        sampling=Sampling(temperature=0.7, max_tokens=40),
        policy=BASE,
    )
    sampled = [token async for chunk in engine.generate(request) for token in chunk.ids]
    return Lesson(
        turn_id=new_id(), lineage_id=LINEAGE, messages=ASKED, tools=(), prompt_ids=prompt,
        sampled_ids=sampled,
    )  # fmt: skip


def teacher(engine: SglangEngine, renderer: TemplateRenderer, **values: Any) -> Teacher:
    async def live(_: UUID) -> PolicyRef:
        return BASE

    return Teacher(**{
        "kind": "base", "engines": (engine,), "students": (engine,), "live": live,
        "renderer": renderer, **values,
    })  # fmt: skip


def values(table: Any, ids: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[float(table[at, token]) for token in row] for at, row in enumerate(ids)]


async def test_the_teachers_values_are_those_of_a_torch_forward(
    engine: SglangEngine, renderer: TemplateRenderer, forward: Callable[..., Any]
) -> None:
    lesson = await sampled_lesson(engine, renderer)
    found = await teacher(engine, renderer).teach(lesson, HINT)
    prompt = renderer.render(hinted(ASKED, HINT), (), {})
    own = [[token] for token in lesson.sampled_ids]
    expected = [row[0] for row in values(forward(prompt, lesson.sampled_ids), own)]
    assert found.prompt_len == len(prompt)
    assert found.logprobs == pytest.approx(expected, abs=TOLERANCE_NATS)
    student = values(forward(lesson.prompt_ids, lesson.sampled_ids), own)
    assert max(abs(a - b[0]) for a, b in zip(found.logprobs, student, strict=True)) > 0.05


@pytest.mark.parametrize("of", ["teacher", "student"])
async def test_fifty_others_in_each_place_are_those_of_a_torch_forward(
    engine: SglangEngine, renderer: TemplateRenderer, forward: Callable[..., Any], of: str
) -> None:
    lesson = await sampled_lesson(engine, renderer)
    found = await teacher(engine, renderer, top_k=50, top_of=of).teach(lesson, HINT)
    prompt = renderer.render(hinted(ASKED, HINT), (), {})
    told = forward(prompt, lesson.sampled_ids)
    chosen = told if of == "teacher" else forward(lesson.prompt_ids, lesson.sampled_ids)
    expected = chosen.topk(51, dim=-1)
    for place, row in enumerate(found.top_ids):
        # Where the fiftieth and the next are as good as equal, either may be named.
        assert float(expected.values[place, 49]) - min(
            float(chosen[place, token]) for token in row
        ) <= 2 * TOLERANCE_NATS  # fmt: skip
        assert len(set(row)) == 50
    for ours, theirs in zip(found.top_logprobs, values(told, found.top_ids), strict=True):
        assert list(ours) == pytest.approx(theirs, abs=TOLERANCE_NATS)
        assert 0 < sum(math.exp(value) for value in ours) < 1
