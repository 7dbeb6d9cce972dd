"""A peft LoRA adapter on a frozen model; the reference policy is the model with it off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import Tensor

from gateway.device import Device
from gateway.errors import ConfigError
from gateway.records import PolicyKind
from trainer.backends.hf_files import store
from trainer.backends.sharding import Sharding, whole
from trainer.backends.weights import read_network
from trainer.config import TrainerConfig
from trainer.distributed import World

_FILE = "adapter_model.safetensors"
_PREFIX, _INNER = "base_model.model.", ".base_layer"


class LoraWeights:
    """See `trainer.backends.weights.Weights`. The adapter is float32 whatever the model is.

    Where the model is sharded, each rank holds all of the adapter.
    """

    kind = PolicyKind.LORA
    inline = True

    def __init__(
        self, model: Path, config: TrainerConfig, device: Device, sharding: Sharding | None = None
    ) -> None:
        self._world = sharding.world if sharding else World.alone()
        self.network = read_network(
            model, config, device, sharding, trains=False, reference_head=False
        )
        if "lm_head" in config.lora.target_modules:
            raise ConfigError("trainer.lora.target_modules: the output layer carries no adapter")
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            target_modules=list(config.lora.target_modules),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.peft = get_peft_model(self.network.causal, lora)
        self.peft.eval()
        self._trained = {
            name: weight for name, weight in self.peft.named_parameters() if weight.requires_grad
        }
        self._fresh = {name: weight.detach().clone() for name, weight in self._trained.items()}

    @property
    def trained(self) -> Mapping[str, torch.nn.Parameter]:
        return self._trained

    def reference(self) -> AbstractContextManager[None]:
        off: AbstractContextManager[None] = self.peft.disable_adapter()
        return off

    def export(self, directory: Path) -> None:
        with self._world.together():
            if not self._world.leads:
                return
            state = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
            weights = {name: weight.detach().cpu().contiguous() for name, weight in state.items()}
            store(weights, directory / _FILE)
            self.peft.peft_config["default"].save_pretrained(str(directory))

    def load(self, directory: Path) -> None:
        weights = load_file(directory / _FILE)
        own = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in own.items()}:
            raise ConfigError(f"{directory} is an adapter of another shape than trainer.lora says")
        set_peft_model_state_dict(self.peft, weights)

    @torch.no_grad()
    def reset(self) -> None:
        for name, weight in self._trained.items():
            weight.copy_(self._fresh[name])

    @torch.no_grad()
    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter is merged into what it changes."""
        layers: dict[str, Any] = {
            f"{name}{_INNER}.weight": layer
            for name, layer in self.peft.named_modules()
            if isinstance(layer, BaseTunerLayer)
        }
        for name, weight in self.peft.named_parameters():
            if name in self._trained:
                continue
            merged = whole(weight.detach())
            if (layer := layers.get(name)) is not None:
                merged = (merged.float() + layer.get_delta_weight("default")).to(weight.dtype)
            yield (
                name.removeprefix(_PREFIX).replace(f"{_INNER}.", "."),
                (merged.cpu() if self._world.leads else merged),
            )
