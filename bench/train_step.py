"""Steps of one back end on a given batch: `python -m bench.train_step NAME CASE`, one JSON line.

NAME is torch_lora, torch_full, megatron_full, or hf_full: a plain loop over a Hugging Face model,
one sequence at a time, whole logits. CASE is the file that `bench.train` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from transformers import AutoModelForCausalLM

from bench.train_meter import Meter
from gateway.device import device
from gateway.records import FinishReason, PolicyKind, TrainingSample
from trainer.backends.build import build_backend
from trainer.config import TrainerConfig
from trainer.distributed import World
from trainer.packing import pack
from trainer.update import update


def main() -> None:
    name, path = sys.argv[1:]
    case = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    meter = Meter()
    if name == "hf_full":
        _plain(case, meter)
    else:
        backend, _, kind = name.partition("_")
        _ours(case, meter, backend, PolicyKind(kind))
    print(json.dumps(meter.report()))


def _ours(case: dict[str, Any], meter: Meter, name: str, kind: PolicyKind) -> None:
    config = TrainerConfig.model_validate(
        {
            "backend": name,
            "recompute": "layers" if name == "torch" else "auto",
            "megatron": {"recompute": name == "megatron"},
            "lora": {"rank": case["rank"], "alpha": 2 * case["rank"]},
            "optimizer": {"lr": case["lr"]},
            # What the others do: no reference policy, and no bound on the whole step.
            "loss": {"kl_coef": 0.0, "max_step_kl": None},
        }
    )
    if name == "megatron" and device() == "cpu":
        from tests import megatron_shim

        megatron_shim.install()
    backend = build_backend(Path(case["model"]), config, device(), kind, World.alone())
    samples = [
        TrainingSample(
            id=UUID(int=at), turn_id=UUID(int=at), session_id=UUID(int=at), user="", score=score,
            weight=1.0, prompt_ids=prompt, sampled_ids=reply, logprobs=logprobs, spans=(),
            temperature=1.0, finish_reason=FinishReason.STOP, arrived_at=0.0,
        )
        for at, (prompt, reply, logprobs, score) in enumerate(_columns(case))
    ]  # fmt: skip
    gains = [(one.score,) * len(one.sampled_ids) for one in samples]
    batch = pack(
        samples, gains, vocab=backend.vocab_size, budget=backend.budget, shared=backend.shares_rows
    )
    for _ in range(case["steps"]):
        meter.begin()
        update(backend, (batch,), config.loss, lambda: False)
        meter.end()


def _plain(case: dict[str, Any], meter: Meter) -> None:
    model = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32).to(device())
    adam = torch.optim.AdamW(model.parameters(), lr=case["lr"])
    tokens = sum(len(reply) for reply in case["replies"])
    for _ in range(case["steps"]):
        meter.begin()
        for prompt, reply, _, score in _columns(case):
            ids = torch.tensor([[*prompt, *reply]], device=device())
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            log = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
            (-score * torch.exp(log - log.detach()).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        meter.end()


def _columns(case: dict[str, Any]) -> Any:
    return zip(case["prompts"], case["replies"], case["logprobs"], case["scores"], strict=True)


if __name__ == "__main__":
    main()
