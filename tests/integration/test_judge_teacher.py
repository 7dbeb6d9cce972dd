"""Teacher log-probabilities of the real engine, against a forward pass of the same weights."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling, new_id
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer
from judge.teacher import Teacher, hinted

LINEAGE = UUID(int=9)

#: Two float32 forward passes of the same tiny model, by different kernels.
TOLERANCE_NATS = 2e-4


@pytest.mark.sglang
async def test_the_teachers_values_are_those_of_a_torch_forward(
    sglang_url: str, tiny_model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.load(tiny_model)
    renderer = TemplateRenderer(tokenizer)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    hint = "Name the country as well."
    prompt = renderer.render(messages, (), {})
    engine = SglangEngine(EngineSettings(url=sglang_url))
    try:
        # Sampled at another temperature than the teacher's, without the hint.
        request = Generation(
            rid=new_id().hex,
            input_ids=prompt,
            sampling=Sampling(temperature=0.7, max_tokens=40),
            policy=PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE),
        )
        sampled = [token async for chunk in engine.generate(request) for token in chunk.ids]
        teacher = Teacher.on_base(engine, renderer, LINEAGE, 2048)
        found = await teacher.logprobs(messages, sampled, hint)
    finally:
        await engine.close()

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def forward(before: list[int]) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([before + sampled])).logits[0].double()
        values = torch.log_softmax(logits[len(before) - 1 : -1], dim=-1)
        return [float(values[at, token]) for at, token in enumerate(sampled)]

    hinted_prompt = renderer.render(hinted(messages, hint), (), {})
    assert found.logprobs == pytest.approx(forward(hinted_prompt), abs=TOLERANCE_NATS)
    student = forward(prompt)
    assert max(abs(a - b) for a, b in zip(found.logprobs, student, strict=True)) > 0.05
