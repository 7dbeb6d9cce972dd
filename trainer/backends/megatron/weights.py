"""The weights of a stage: read from and written to Hugging Face files, a weight at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from torch import Tensor

from gateway.errors import ConfigError, TrainerError
from trainer.backends.hf_files import copy_rest
from trainer.backends.megatron.architecture import Architecture
from trainer.backends.megatron.naming import Slot, join, slots, split
from trainer.backends.megatron.parallel import Parallel


class StageWeights:
    """`named` are the parameters of this process by Megatron's names.

    The reference policy is a copy of them that waits on the CPU, kept where `referred` says so.
    """

    def __init__(
        self,
        model: Path,
        shape: Architecture,
        parallel: Parallel,
        named: Mapping[str, torch.nn.Parameter],
        *,
        fused: bool,
        referred: bool,
    ) -> None:
        self._model, self._shape, self._parallel = model, shape, parallel
        self._named, self._fused = named, fused
        self.read(model)
        self._reference: dict[str, Tensor] | None = None
        if referred:
            self._reference = {
                name: weight.detach().to("cpu", copy=True) for name, weight in named.items()
            }

    @torch.no_grad()
    def read(self, directory: Path) -> None:
        """Take this process's share of a model. Raises ConfigError where it is of another shape."""
        files = _files(directory)
        known = {part.name for slot in self._all() for part in slot.parts}
        if unknown := files.keys() - known - self._idle():
            raise ConfigError(f"{directory}: Megatron has no place for {min(unknown)}")
        for slot in self._own(self._parallel.stage):
            whole = []
            for part in slot.parts:
                if part.name not in files:
                    raise ConfigError(f"{directory} holds no {part.name}")
                with safe_open(files[part.name], framework="pt") as file:
                    value = file.get_tensor(part.name)
                if tuple(value.shape) != part.shape:
                    raise ConfigError(f"{directory}: {part.name} is of another shape")
                whole.append(value)
            rank, size = self._parallel.tensor, self._parallel.tensors
            self._named[slot.name].copy_(split(slot.kind, self._shape, whole, rank, size))

    def reset(self) -> None:
        """Go back to the base model."""
        self.read(self._model)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """For as long as it is open, the stage computes the reference policy.

        The device holds both copies then. Raises TrainerError where none is kept.
        """
        kept = self._kept()
        own = {name: weight.data for name, weight in self._named.items()}
        try:
            for name, weight in self._named.items():
                weight.data = kept[name].to(weight.device)
            yield
        finally:
            for name, weight in self._named.items():
                weight.data = own[name]

    def iter_hf(self, held: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """All weights by their Hugging Face names, on the CPU of every process.

        Or what is `held` of each of them, in this process, by Megatron's names.

        All processes must go through them together: gathered over those that share a matrix, and
        broadcast by the stage that holds them.
        """
        source = self._named if held is None else held
        seen: set[str] = set()
        for stage in range(self._parallel.stages):
            for slot in self._own(stage):
                if slot.parts[0].name in seen:
                    continue
                for part, value in zip(slot.parts, self._whole(slot, stage, source), strict=True):
                    seen.add(part.name)
                    yield part.name, value.cpu()

    def _whole(self, slot: Slot, stage: int, source: Mapping[str, Tensor]) -> list[Tensor]:
        """The parts of a slot of a stage, wherever it is."""
        parallel, any_weight = self._parallel, next(iter(source.values()))
        found: list[Tensor] | None = None
        if stage == parallel.stage:
            mine = source[slot.name].detach()
            shards = [mine]
            if parallel.tensors > 1 and slot.kind != "whole":
                shards = [torch.empty_like(mine) for _ in range(parallel.tensors)]
                group = parallel_state.get_tensor_model_parallel_group()
                dist.all_gather(shards, mine.contiguous(), group=group)
            found = [part.contiguous() for part in join(slot.kind, self._shape, shards)]
        if parallel.stages > 1:
            group = parallel_state.get_pipeline_model_parallel_group()
            if found is None:
                found = [
                    torch.empty(part.shape, dtype=any_weight.dtype, device=any_weight.device)
                    for part in slot.parts
                ]
            for value in found:
                dist.broadcast(value, group=group, group_src=stage)
        assert found is not None
        return found

    def export_rest(self, directory: Path) -> None:
        """Write what a model has beside its weights; `dtype` is that of the weights."""
        config = json.loads((self._model / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = str(next(iter(self._named.values())).dtype).removeprefix("torch.")
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        copy_rest(self._model, directory)

    @property
    def reference_head(self) -> Tensor:
        """The rows of the reference's output layer, on the CPU. Raises TrainerError."""
        kept, tied = self._kept(), "embedding.word_embeddings.weight"
        return kept.get("output_layer.weight", kept.get(tied, torch.empty(0)))

    def _kept(self) -> dict[str, Tensor]:
        if self._reference is None:
            raise TrainerError("no reference policy is kept where trainer.loss.kl_coef is 0")
        return self._reference

    def _own(self, stage: int) -> Iterator[Slot]:
        parallel, count = self._parallel, self._shape.layers
        return slots(
            self._shape,
            parallel.layers(count, stage),
            first=stage == 0,
            last=stage == parallel.stages - 1,
            fused=self._fused,
        )

    def _all(self) -> Iterator[Slot]:
        for stage in range(self._parallel.stages):
            yield from self._own(stage)

    def _idle(self) -> set[str]:
        """Names that older files store and nothing reads."""
        layers = range(self._shape.layers)
        idle = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in layers}
        return idle | ({"lm_head.weight"} if self._shape.tied else set())


def _files(directory: Path) -> dict[str, Path]:
    """The file of each stored weight."""
    found: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found
