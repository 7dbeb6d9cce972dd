"""What is trained of a Hugging Face causal model: an adapter, or all of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from gateway.device import Device
from gateway.errors import ConfigError
from gateway.records import PolicyKind
from trainer.backends.hf_files import fill
from trainer.backends.network import Network
from trainer.backends.sharding import Sharding, on_meta
from trainer.config import TrainerConfig


class Weights(Protocol):
    """One policy in memory, without its optimizer."""

    kind: PolicyKind
    #: Its forward pass is the policy's.
    network: Network

    @property
    def trained(self) -> Mapping[str, torch.nn.Parameter]:
        """What the optimizer changes, by name."""
        ...

    @property
    def inline(self) -> bool:
        """Whether the reference's forward pass costs nothing to switch to."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """The model computes the reference policy while the context is open.

        Raises TrainerError where none is kept.
        """
        ...

    def export(self, directory: Path) -> None:
        """Write the policy as engines load it."""
        ...

    def load(self, directory: Path) -> None:
        """Read an exported policy. Raises ConfigError where it is of another shape."""
        ...

    def reset(self) -> None:
        """Go back to version 0."""
        ...

    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights of the policy by their Hugging Face names, one at a time, on the CPU."""
        ...


def read_network(
    model: Path,
    config: TrainerConfig,
    device: Device,
    sharding: Sharding | None,
    *,
    trains: bool,
    reference_head: bool,
) -> Network:
    """A causal model in the configured precision, each rank with its share of the weights.

    Sharded weights that are trained are float32, and computed with in that precision. With
    `reference_head` the output layer is there a second time, as it is now. Raises ConfigError for
    a model that cannot be trained.
    """
    compute = precision(config, device)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if sharding is None:
        causal: Any = AutoModelForCausalLM.from_pretrained(
            str(model), dtype=compute, local_files_only=True
        )
    else:
        stored = torch.float32 if trains else compute
        settings = AutoConfig.from_pretrained(str(model), local_files_only=True)
        make: Any = AutoModelForCausalLM.from_config
        causal = on_meta(lambda: make(settings, dtype=stored))
        causal.tie_weights()
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(causal.config, name, None) not in (None, 1, 1.0):
            raise ConfigError(f"{model}: models with {name} cannot be trained")
    causal.eval()
    causal.requires_grad_(trains)
    head = causal.get_output_embeddings()
    second = copy.deepcopy(head).requires_grad_(requires_grad=False) if reference_head else None
    network = Network(causal, config.head_chunk, second)
    if config.recompute == "layers" or (config.recompute == "auto" and device == "cuda"):
        network.recompute()
    if sharding is None:
        return network.to(device)
    (top,) = (name for name, part in causal.named_modules() if part is head)
    sharding.apply(network, compute)
    named = dict(causal.named_parameters())
    fill(named, model)
    if second is not None:
        # Of tied weights, the files have the embedding alone.
        own = [name for name, weight in named.items() if weight is head.weight]
        fill({own[0]: second.weight}, model)
        if head.bias is not None:
            fill({f"{top}.bias": second.bias}, model)
    return network


def precision(config: TrainerConfig, device: Device) -> torch.dtype:
    """What is computed in."""
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return kinds.get(config.dtype, torch.bfloat16 if device == "cuda" else torch.float32)
