"""AdamW on float32 weights, with warm-up, clipping and a way back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from gateway.errors import ConfigError, NonFinite
from trainer.backends import shards
from trainer.backends.hf_files import fill, store, stored_names
from trainer.backends.sharding import Sharding, local, whole
from trainer.config import OptimizerSettings
from trainer.distributed import World

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_MASTER = "master."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights in float32, moments and steps taken."""

    weights: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    steps: int


class Optimizer:
    """Of the weights of one policy, or of this rank's share of them.

    Each weight that is not float32 has a master copy that is; gradients are added up in that
    copy's precision, however many micro-batches they come from. Snapshots are kept on the CPU
    where `aside` says so: of all weights of a model they would fill the device.
    """

    def __init__(
        self,
        trained: Mapping[str, Parameter],
        settings: OptimizerSettings,
        *,
        aside: bool = False,
    ) -> None:
        self._trained, self._settings, self._aside = trained, settings, aside
        self.masters = {
            name: weight if weight.dtype == torch.float32 else Parameter(weight.detach().float())
            for name, weight in trained.items()
        }
        for name, weight in trained.items():
            if self.masters[name] is not weight:
                hook = partial(_gather, self.masters[name])
                weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self.steps = 0
        self.adam = self._new()

    def step(self, loss: float) -> tuple[float, float]:
        """Apply the gradients that were gathered: their norm before clipping, the learning rate.

        Raises NonFinite where the loss or the norm is not; then no weight has changed.
        """
        settings = self._settings
        norm = float(
            whole(
                torch.nn.utils.clip_grad_norm_(list(self.masters.values()), settings.max_grad_norm)
            )
        )
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise NonFinite(f"loss {loss}, gradient norm {norm}")
        lr = settings.lr * min(1.0, (self.steps + 1) / max(1, settings.warmup_steps))
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self._lower()
        self.steps += 1
        return norm, lr

    def forget_gradients(self) -> None:
        self.adam.zero_grad(set_to_none=True)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            weights={name: self._copy(weight) for name, weight in self.masters.items()},
            moments={
                name: {kind: self._copy(self.adam.state[weight][kind]) for kind in _MOMENTS}
                for name, weight in self.masters.items()
                if weight in self.adam.state
            },
            steps=self.steps,
        )

    @torch.no_grad()
    def rewind(self, snapshot: Snapshot) -> None:
        for name, weight in self.masters.items():
            local(weight).copy_(snapshot.weights[name])
        self._lower()
        self.adam = self._new()
        for name, state in snapshot.moments.items():
            mine = self._moments(name)
            for kind, value in state.items():
                local(mine[kind]).copy_(value)
        self.steps = snapshot.steps

    @torch.no_grad()
    def shrink(self, snapshot: Snapshot, share: float) -> None:
        """Keep only a share of what the weights have moved since a snapshot."""
        for name, weight in self.masters.items():
            held = local(weight)
            before = snapshot.weights[name].to(held.device)
            held.copy_(before + share * (held - before))
        self._lower()

    def save(self, directory: Path, sharding: Sharding | None = None) -> Callable[[], None]:
        """Moments and steps, and the masters that the policy's own files would round.

        What waits until they are written.
        """
        moments = {
            f"{kind}.{name}": self.adam.state[weight][kind].detach()
            for name, weight in self.masters.items()
            if weight in self.adam.state
            for kind in _MOMENTS
        }
        masters = {
            name: weight.detach()
            for name, weight in self.masters.items()
            if weight is not self._trained[name] or local(weight) is not weight
        }
        world = sharding.world if sharding else World.alone()
        with world.together():
            if world.leads:
                (directory / "optimizer.json").write_text(json.dumps({"steps": self.steps}))
                if not self._sharded:
                    _save(moments, directory / "optimizer.safetensors")
                    if masters:
                        _save(masters, directory / "masters.safetensors")
        if sharding is None or not self._sharded:
            return lambda: None
        named = {f"{_MASTER}{name}": weight for name, weight in masters.items()}
        return shards.write(moments | named, directory, sharding.saving)

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Go on from what was saved, by whatever number of ranks; the policy is loaded already.

        Raises ConfigError for a state that another back end wrote for itself alone.
        """
        if not (directory / "optimizer.json").is_file():
            raise ConfigError(f"{directory} is no state of trainer.backend torch")
        self.reset()
        plain = directory / "optimizer.safetensors"
        # Another back end may have written this beside what only it reads.
        stored = None if plain.is_file() else shards.names(directory)
        for key in stored_names(directory) if stored is None else stored:
            kind, _, name = key.partition(".")
            if kind in _MOMENTS:
                self._moments(name)
        moments = {
            f"{kind}.{name}": self.adam.state[weight][kind]
            for name, weight in self.masters.items()
            if weight in self.adam.state
            for kind in _MOMENTS
        }
        if stored is not None:
            named = {f"{_MASTER}{name}": own.detach() for name, own in self.masters.items()}
            shards.read(moments | named, directory)
        else:
            fill(moments, directory, plain.name)
            if (directory / "masters.safetensors").is_file():
                fill(self.masters, directory, "masters.safetensors")
        self._lower()
        self.steps = int(json.loads((directory / "optimizer.json").read_text())["steps"])

    @torch.no_grad()
    def reset(self) -> None:
        """Begin anew from the weights as they are."""
        for name, weight in self._trained.items():
            if self.masters[name] is not weight:
                self.masters[name].copy_(weight)
        self.steps = 0
        self.adam = self._new()

    @property
    def _sharded(self) -> bool:
        return any(local(weight) is not weight for weight in self.masters.values())

    def _moments(self, name: str) -> dict[str, Tensor]:
        """Those of a weight, made where there are none."""
        weight = self.masters[name]
        state: dict[str, Tensor] = self.adam.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind] = torch.zeros_like(weight, requires_grad=False)
        return state

    def _copy(self, value: Tensor) -> Tensor:
        held = local(value.detach())
        return held.to("cpu" if self._aside else held.device, copy=True)

    def _lower(self) -> None:
        """Bring the weights that are computed with to what their masters are."""
        with torch.no_grad():
            for name, weight in self._trained.items():
                if self.masters[name] is not weight:
                    weight.copy_(self.masters[name])

    def _new(self) -> torch.optim.AdamW:
        settings = self._settings
        return torch.optim.AdamW(
            list(self.masters.values()),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )


def _gather(master: Parameter, weight: Tensor) -> None:
    """Move a gradient into its master."""
    if weight.grad is None:
        return
    gradient = weight.grad.float()
    weight.grad = None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    store({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
