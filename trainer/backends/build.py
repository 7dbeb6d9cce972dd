"""The back end that the settings name."""

from __future__ import annotations

from pathlib import Path

from gateway.device import Device
from gateway.records import PolicyKind
from trainer.backends.base import Backend
from trainer.config import TrainerConfig
from trainer.distributed import World


def build_backend(
    model: Path, config: TrainerConfig, device: Device, kind: PolicyKind, world: World
) -> Backend:
    """On the base model; heavy, and collective. Raises ConfigError where it cannot be trained."""
    if config.backend == "megatron":
        from trainer.backends.megatron.backend import MegatronBackend

        return MegatronBackend(model, config, device, kind, world)
    from trainer.backends.torch_backend import TorchBackend

    return TorchBackend(model, config, device, kind, world)
