"""Dense models of the Qwen and Llama families over many GPUs, by Megatron-core.

Every process is given the same batches and comes to the same results: micro-batches are shared
out over data parallel processes, and what the last stage finds is told to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from gateway.device import Device
from gateway.errors import ConfigError
from gateway.records import PolicyKind
from trainer.backends.base import Probe, StepAbandoned, StepOutcome
from trainer.backends.hf_files import write_weights
from trainer.backends.megatron.architecture import Architecture
from trainer.backends.megatron.checkpoint import load_state, read_moments, save_state
from trainer.backends.megatron.optimizer import Snapshot, StageOptimizer
from trainer.backends.megatron.parallel import Parallel
from trainer.backends.megatron.passes import Passes
from trainer.backends.megatron.plain import write_plain
from trainer.backends.megatron.probes import as_batch
from trainer.backends.megatron.transformer import Trunk, fused, make_trunk
from trainer.backends.megatron.vocabulary import Rows, ShardedVocabulary
from trainer.backends.megatron.weights import StageWeights
from trainer.backends.vocabulary import Lesson, tokens_of
from trainer.config import TrainerConfig
from trainer.distributed import World
from trainer.losses import TokenLoss, Tokens, joined
from trainer.micro_batch import MicroBatch, PackedBatch

T = TypeVar("T")


class MegatronBackend:
    """See `trainer.backends.base.Backend`. All processes must make the same calls, in order."""

    kind = PolicyKind.FULL

    def __init__(
        self,
        model: Path,
        config: TrainerConfig,
        device: Device,
        kind: PolicyKind = PolicyKind.FULL,
        world: World | None = None,
    ) -> None:
        """Load this process's share. Raises ConfigError where it cannot be trained exactly."""
        if kind is not PolicyKind.FULL:
            raise ConfigError("trainer.backend megatron trains all weights; LoRA needs torch")
        _check_cuda()
        self._config, self._device, settings = config, device, config.megatron
        self._world = world or World.alone()
        if device == "cpu" and config.threads:
            torch.set_num_threads(config.threads)
        dtype = _dtype(config, device)
        self._shape = Architecture.of(model)
        self._shape.check(settings)
        self._parallel = Parallel.open(settings, device, self._world.timeout)
        self._trunk: Trunk = make_trunk(
            self._shape, settings, self._parallel, dtype=dtype, device=device
        )
        self._weights = StageWeights(
            model,
            self._shape,
            self._parallel,
            dict(self._trunk.named_parameters()),
            fused=fused(settings, device),
            referred=bool(config.loss.kl_coef),
        )
        self._optimizer = StageOptimizer(
            self._trunk, config.optimizer, distributed=settings.distributed_optimizer
        )
        self._passes = Passes(
            self._optimizer.stage, self._parallel, device, scattered=settings.sequence_parallel
        )

    @property
    def vocab_size(self) -> int:
        return self._shape.vocab

    @property
    def budget(self) -> int:
        return self._config.micro_batch_tokens or (256 if self._device == "cpu" else 16_384)

    @property
    def shares_rows(self) -> bool:
        # Rows are laid end to end here (`Sequences`), each a sequence of its own.
        return False

    @property
    def ranks(self) -> int:
        return self._parallel.datas

    @property
    def tolerance(self) -> float:
        return 0.02 if self._trunk.config.params_dtype == torch.float32 else 0.5

    def step(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> StepOutcome:
        try:
            found = self._learn(batch, loss, cancelled)
            self._go_on(cancelled)
            total = sum(value for value, _ in found)
            norm, lr = self._optimizer.step(total)
        finally:
            self._optimizer.forget_gradients()
        tokens = joined([seen for _, seen in found])
        return StepOutcome(loss=total, grad_norm=norm, lr=lr, tokens=tokens)

    def snapshot(self) -> object:
        return self._optimizer.snapshot()

    def rewind(self, snapshot: object) -> None:
        assert isinstance(snapshot, Snapshot)
        self._optimizer.rewind(snapshot)

    def shrink(self, snapshot: object, share: float) -> None:
        assert isinstance(snapshot, Snapshot)
        self._optimizer.shrink(snapshot, share)

    def logprobs(self, batch: PackedBatch) -> list[Tensor]:
        def reader(_: int, micro: MicroBatch, states: Tensor) -> Tensor:
            return (
                self._vocabulary()
                .chosen(states, micro.targets, micro.temperature, micro.kept)
                .cpu()
            )

        return self._told(self._passes.read(batch, reader), batch)

    def reference_logprobs(self, batch: PackedBatch) -> list[Tensor]:
        with self._weights.reference():
            return self.logprobs(batch)

    def score(self, probes: Sequence[Probe]) -> list[list[float]]:
        batch, order = as_batch(probes, self.budget)
        scores: list[list[float]] = [[] for _ in probes]
        found = iter(torch.cat(self.logprobs(batch)).tolist())
        for index in order:
            count = len(probes[index].ids) - probes[index].start
            scores[index] = list(islice(found, count))
        return scores

    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._weights.iter_hf()

    def export(self, directory: Path) -> None:
        weights = self._weights.iter_hf()
        with self._world.together():
            try:
                if self._world.leads:
                    write_weights(weights, directory)
                    self._weights.export_rest(directory)
            finally:
                # Whoever cannot write, or need not, goes through them with the others.
                for _ in weights:
                    pass

    def save(self, directory: Path) -> Callable[[], None]:
        save_state(directory, self._trunk, self._optimizer)
        if self._config.megatron.portable:
            found = read_moments(directory, self._trunk)
            named = ((kind, self._weights.iter_hf(held)) for kind, held in found.items())
            with self._world.together():
                write_plain(named, self._optimizer.steps, directory if self._world.leads else None)
        return lambda: None

    def load(self, policy: Path, state: Path) -> None:
        self._weights.read(policy)
        self._optimizer.reset()
        load_state(state, self._trunk, self._optimizer)

    def reset(self) -> None:
        self._weights.reset()
        self._optimizer.reset()

    def _go_on(self, cancelled: Callable[[], bool]) -> None:
        """Raise StepAbandoned in all processes where one of them is asked to end."""
        if self._world.any(cancelled()):
            raise StepAbandoned("the step was asked to end")

    def _told(self, mine: dict[int, T], batch: PackedBatch) -> list[T]:
        """What was found of each micro-batch, on every process."""
        return self._world.collect(mine if self._parallel.tells else {}, len(batch.micro))

    def _learn(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> list[tuple[float, Tokens]]:
        """Gather the gradients of a batch; the loss and the tokens of each micro-batch."""
        self._go_on(cancelled)
        references, head = self._references(batch)
        self._go_on(cancelled)

        def learning(
            place: int, micro: MicroBatch, states: Tensor
        ) -> tuple[Tensor, tuple[float, Tokens]]:
            tokens = self._tokens(micro, states, references.get(place), head)
            value = loss(tokens)
            return value, (float(value.detach()), tokens.detached())

        return self._told(self._passes.learn(batch, learning), batch)

    def _references(self, batch: PackedBatch) -> tuple[dict[int, Tensor], Tensor | None]:
        """States [N, H] of the reference policy by micro-batch, on the CPU, and its output layer.

        Its weights are brought in once a step. Nothing where no loss asks for it, or on stages
        that hold no output layer.
        """
        if not self._config.loss.kl_coef:
            return {}, None
        with self._weights.reference():
            states = self._passes.read(batch, lambda _, __, states: states.cpu())
            head = self._weights.reference_head.to(self._device) if self._parallel.last else None
        return states, head

    def _vocabulary(self, reference: Tensor | None = None) -> ShardedVocabulary:
        """The output layer; only the last stage has one."""
        other = None if reference is None else self._rows(reference)
        return ShardedVocabulary(self._rows(self._trunk.head), self._config.head_chunk, other)

    def _rows(self, weight: Tensor) -> Rows:
        first = self._parallel.tensor * len(weight)
        known = min(len(weight), self._shape.vocab - first)
        return Rows(weight=weight[:known], first=first, group=self._parallel.tensor_group)

    def _tokens(
        self,
        micro: MicroBatch,
        states: Tensor,
        reference: Tensor | None,
        reference_head: Tensor | None,
    ) -> Tokens:
        """What the loss sees of a micro-batch, gradients attached."""
        settings, lesson, top = self._config.loss, micro.lesson, None
        if lesson is not None and lesson.top_ids is not None and lesson.top_logprobs is not None:
            top = Lesson(lesson.top_ids, lesson.top_logprobs)
        terms = self._vocabulary(reference_head).terms(
            states,
            None if reference is None else reference.to(self._device),
            micro.targets,
            micro.temperature,
            exact=settings.kl == "exact",
            undecided=settings.entropy_coef > 0,
            plain=lesson is not None,
            lesson=top,
            kept=micro.kept,
        )
        return tokens_of(micro, terms)


def _check_cuda() -> None:
    """Raise ConfigError where there is no GPU, without which Megatron cannot take a step."""
    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(f"trainer.backend megatron needs a GPU: {error}") from None


def _dtype(config: TrainerConfig, device: Device) -> torch.dtype:
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return kinds.get(config.dtype, torch.bfloat16 if device == "cuda" else torch.float32)
