"""A model of 64 ids to train in a moment, and samples for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gateway.records import FinishReason, Teaching, TrainingSample

VOCAB = 64


def make_llama(directory: Path, *, tied: bool = True) -> Path:
    """An HF directory; the output layer is the embedding, or, not `tied`, one of its own."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=tied, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def sample(prompt: Sequence[int], reply: Sequence[int], **changes: Any) -> TrainingSample:
    base = TrainingSample(
        id=UUID(int=1), turn_id=UUID(int=2), session_id=UUID(int=3), user="ann", score=1.0,
        weight=1.0, prompt_ids=prompt, sampled_ids=reply, logprobs=[-2.0] * len(reply), spans=(),
        temperature=0.8, finish_reason=FinishReason.STOP, arrived_at=0.0,
    )  # fmt: skip
    return replace(base, **changes)


def drawn(count: int, seed: int = 0) -> list[TrainingSample]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]

    return [
        sample(
            ids(3, 20),
            ids(1, 15),
            score=rng.choice((-1.0, 1.0)),
            temperature=rng.choice((0.7, 1.0)),
        )
        for _ in range(count)
    ]


def teaching(
    logprobs: Sequence[float],
    top_ids: Sequence[Sequence[int]] = (),
    top_logprobs: Sequence[Sequence[float]] = (),
) -> Teaching:
    return Teaching(
        teacher="base", lineage_id=None, version=0, model="tiny", hint="Shorter.", prompt_len=4,
        logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs,
    )  # fmt: skip
