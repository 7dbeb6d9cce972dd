"""Steps of TRL's GRPO trainer on a given batch: `python trl_step.py NAME CASE`, one JSON line.

Runs in the environment of `locks/bench-trl.txt`. NAME is trl_lora or trl_full. The trainer is as
it comes, its own loop, gradient checkpointing and fused output layer included; only the replies are
given instead of generated.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from train_meter import Meter
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Given(GRPOTrainer):
    """One whose batch is there already."""

    given: dict[str, torch.Tensor]

    def _prepare_inputs(self, _: Any) -> dict[str, Any]:
        return {name: value.to(self.accelerator.device) for name, value in self.given.items()}


class Timed(TrainerCallback):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._meter.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._meter.end()


def main() -> None:
    name, path = sys.argv[1:]
    case = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    meter, count = Meter(), len(case["prompts"])
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=case["rank"], lora_alpha=2 * case["rank"], target_modules=_LINEARS
    )
    with tempfile.TemporaryDirectory() as out:
        trainer = Given(
            model=AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(case["model"]),
            reward_funcs=[lambda **_: [0.0] * count],
            train_dataset=Dataset.from_list([{"prompt": "."}] * count),
            peft_config=lora if name == "trl_lora" else None,
            callbacks=[Timed(meter)],
            args=GRPOConfig(
                output_dir=out,
                max_steps=case["steps"],
                learning_rate=case["lr"],
                per_device_train_batch_size=count,
                num_generations=count,
                max_completion_length=len(case["replies"][0]),
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
                report_to=[],
                save_strategy="no",
                logging_steps=1000,
                disable_tqdm=True,
            ),
        )
        prompts, replies = torch.tensor(case["prompts"]), torch.tensor(case["replies"])
        trainer.given = {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_ids": replies,
            "completion_mask": torch.ones_like(replies),
            "advantages": torch.tensor(case["scores"]),
            "num_items_in_batch": torch.tensor(replies.numel()),
        }
        trainer.train()
    sys.stdout.write(json.dumps(meter.report()) + "\n")


if __name__ == "__main__":
    main()
