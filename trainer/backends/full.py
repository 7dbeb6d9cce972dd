"""All weights of a model; the reference policy is a frozen copy that waits on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gateway.device import Device
from gateway.errors import ConfigError, TrainerError
from gateway.records import PolicyKind
from trainer.backends.hf_files import copy_rest, fill, stored_names, write_weights
from trainer.backends.sharding import Sharding, local, whole
from trainer.backends.weights import precision, read_network
from trainer.config import TrainerConfig
from trainer.distributed import World


class FullWeights:
    """See `trainer.backends.weights.Weights`. Without a KL term no reference is kept."""

    kind = PolicyKind.FULL
    inline = False

    def __init__(
        self, model: Path, config: TrainerConfig, device: Device, sharding: Sharding | None = None
    ) -> None:
        self._model, self._world = model, sharding.world if sharding else World.alone()
        kept = bool(config.loss.kl_coef)
        self.network = read_network(
            model, config, device, sharding, trains=True, reference_head=kept
        )
        self._precision = precision(config, device)
        self._trained: dict[str, torch.nn.Parameter] = dict(self.network.causal.named_parameters())
        if unknown := self._trained.keys() - stored_names(model):
            # What is exported would not be what engines of this model load.
            raise ConfigError(f"{model}: {min(unknown)} is not stored under that name")
        self._reference: dict[str, Tensor] | None = None
        if kept:
            self._reference = {
                name: local(weight.detach()).to("cpu", copy=True)
                for name, weight in self._trained.items()
            }

    @property
    def trained(self) -> Mapping[str, torch.nn.Parameter]:
        return self._trained

    @contextmanager
    def reference(self) -> Iterator[None]:
        """For as long as it is open, the policy's own weights wait on the CPU instead."""
        if self._reference is None:
            raise TrainerError("no reference policy is kept where trainer.loss.kl_coef is 0")
        self._exchange(self._reference)
        try:
            yield
        finally:
            self._exchange(self._reference)

    def export(self, directory: Path) -> None:
        weights = self.iter_hf_weights()
        with self._world.together():
            try:
                if self._world.leads:
                    write_weights(weights, directory)
                    self.network.causal.config.dtype = self._precision
                    self.network.causal.config.save_pretrained(str(directory))
                    copy_rest(self._model, directory)
            finally:
                # Each tensor is gathered from all ranks, whatever becomes of the files.
                for _ in weights:
                    pass

    def load(self, directory: Path) -> None:
        fill(self._trained, directory)

    def reset(self) -> None:
        fill(self._trained, self._model)

    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._trained.items():
            full = whole(weight.detach().to(self._precision))
            yield name, full.cpu() if self._world.leads else full

    @torch.no_grad()
    def _exchange(self, other: dict[str, Tensor]) -> None:
        """Swap the weights for `other`, a tensor at a time, so that no second copy has to fit."""
        for name, weight in self._trained.items():
            if weight.device.type == "cpu" and local(weight) is weight:
                weight.data, other[name] = other[name], weight.data
                continue
            held = local(weight)
            own = held.to("cpu", copy=True)
            held.copy_(other[name])
            other[name] = own
