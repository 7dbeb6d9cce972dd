"""What the processes of Megatron and the test that started them both compute. Loads no Megatron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import torch

from gateway.records import TrainingSample
from tests.tiny_llama import drawn, teaching
from tests.tiny_model import make_model
from trainer.backends.base import Probe
from trainer.config import LossSettings, OptimizerSettings, TrainerConfig
from trainer.megatron_settings import MegatronSettings
from trainer.micro_batch import PackedBatch
from trainer.packing import pack

#: Not a multiple of two, so that the last process that shares the vocabulary holds an idle row.
VOCAB = 101
STEPS = 5
#: Steps after which a checkpoint is written, of one of the models.
SAVED = 2
RESUMED = "qwen3"
#: A model that the real engine serves, of which a checkpoint is written too.
SERVED = "served"

PROBES = (Probe((3, 1, 4, 1, 5, 9, 2, 6), 1), Probe(tuple(range(40, 60)), 15))

_SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "initializer_range": 0.1, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
#: As Llama 3.1 names it, with a context so short that waves of every kind are among the 8.
_SCALED = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip

#: What each family has of its own.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 24, "tie_word_embeddings": False},
    "llama": {"tie_word_embeddings": True, "rope_parameters": _SCALED},
    "qwen2": {"tie_word_embeddings": False},
}


def make(name: str, directory: Path) -> Path:
    """A Hugging Face directory of a tiny model with random weights, norms and biases included."""
    if name == SERVED:
        return make_model(directory)
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **_SHAPE, **MODELS[name])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        causal = AutoModelForCausalLM.from_config(config)
        for weight_name, weight in causal.named_parameters():
            if weight.dim() == 1:
                middle = 0.0 if weight_name.endswith("bias") else 1.0
                weight.data = middle + 0.1 * torch.randn_like(weight)
        causal.save_pretrained(directory)
    return directory


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes share the work, and in which way."""

    name: str
    world: int
    megatron: MegatronSettings
    models: tuple[str, ...] = tuple(MODELS)
    #: The layout whose checkpoint this one goes on from, and whether this one writes one.
    resumes: str | None = None
    saves: bool = False

    def config(self, **changes: Any) -> TrainerConfig:
        values: dict[str, Any] = {
            "backend": "megatron", "megatron": self.megatron, "micro_batch_tokens": 64,
            "head_chunk": 7, "dtype": "float32", "loss": LOSS,
            "optimizer": OptimizerSettings(lr=1e-3, weight_decay=0.1, eps=1e-5),
        }  # fmt: skip
        return TrainerConfig(**values | changes)


#: Every part of the loss that a back end has to bring something for.
LOSS = LossSettings(entropy_coef=0.01, opsm_delta=None, veto=None)


def _layout(name: str, world: int, *models: str, **values: Any) -> Layout:
    named = {key: values.pop(key) for key in ("resumes", "saves") if key in values}
    settings = MegatronSettings(**{"distributed_optimizer": False, **values})
    return Layout(name, world, settings, models or tuple(MODELS), **named)


LAYOUTS = (
    _layout("tp1", 1, saves=True),
    _layout(
        "zero1", 1, "qwen3", distributed_optimizer=True, recompute=True, portable=True, saves=True
    ),
    _layout("tp2", 2, tensor_parallel=2, portable=True, resumes="tp1", saves=True),
    _layout("sp2", 2, "qwen3", tensor_parallel=2, sequence_parallel=True),
    _layout("pp2", 2, "qwen3", "llama", pipeline_parallel=2, resumes="tp1"),
    _layout("dp2", 2, "qwen3"),
    _layout("zero2", 2, "qwen3", distributed_optimizer=True, resumes="zero1"),
    _layout("exported", 2, SERVED, tensor_parallel=2, saves=True),
)


#: What a configuration says of a model that Megatron would compute as another.
CHANGES: dict[str, dict[str, Any]] = {
    "family": {"model_type": "gemma"},
    "activation": {"hidden_act": "gelu"},
    "rotary": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
    "bias": {"attention_bias": True},
    "shape": {"intermediate_size": 126},
    "missing": {"num_hidden_layers": 3, "layer_types": None},
    "unknown": {"num_hidden_layers": 1, "layer_types": None},
}


def samples(count: int = 7, seed: int = 0) -> list[TrainingSample]:
    """A chain of two turns, kept sets, and teachings of both kinds, beside plain ones."""
    found = [replace(one, session_id=UUID(int=i)) for i, one in enumerate(drawn(count, seed))]
    rng = torch.Generator().manual_seed(seed)
    first = found[0]
    found[1] = replace(
        found[1],
        session_id=first.session_id,
        prompt_ids=[*first.prompt_ids, *first.sampled_ids, 9, 8],
    )
    kept = [sorted({token, 1, 2, 3 + at, 100}) for at, token in enumerate(found[2].sampled_ids)]
    found[2] = replace(found[2], kept=kept)
    for place, top in ((3, 0), (4, 5)):
        reply = found[place].sampled_ids
        ids = [torch.randperm(VOCAB, generator=rng)[:top].tolist() for _ in reply] if top else []
        logs = [torch.randn(VOCAB, generator=rng).log_softmax(-1)[row].tolist() for row in ids]
        told = teaching([-1.0 - 0.1 * at for at in range(len(reply))], ids, logs)
        found[place] = replace(found[place], teaching=told)
    return found


def plain(count: int = 4) -> list[TrainingSample]:
    """Nothing but replies, each in a session of its own."""
    return [replace(one, session_id=UUID(int=i)) for i, one in enumerate(drawn(count, 9))]


def packed(chosen: Sequence[TrainingSample]) -> PackedBatch:
    gains = [(one.score,) * len(one.sampled_ids) for one in chosen]
    counts = [0.5 if one.teaching else 0.0 for one in chosen]
    return pack(chosen, gains, vocab=VOCAB, budget=64, taught=counts, top_k=True)
