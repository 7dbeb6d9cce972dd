"""Hugging Face causal models on one CPU or GPU, or on many: a LoRA adapter, or all weights.

In a world of several ranks the weights are spread over them by FSDP2, and each computes its share
of the micro-batches. With one optimizer step a batch the proximal policy is the current one
detached: no forward pass of its own. The trunk runs on whole sequences, the output layer only where
a token was sampled, a chunk at a time, so that logits of a long sequence are never held whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gateway.device import Device
from gateway.records import PolicyKind
from trainer.backends.base import Probe, StepAbandoned, StepOutcome
from trainer.backends.full import FullWeights
from trainer.backends.lora import LoraWeights
from trainer.backends.optimizer import Optimizer, Snapshot
from trainer.backends.sharding import Sharding, summed
from trainer.backends.shared_rows import keeps_apart
from trainer.backends.vocabulary import Terms, tokens_of
from trainer.backends.weights import Weights, precision
from trainer.config import TrainerConfig
from trainer.distributed import World, split
from trainer.losses import TokenLoss, Tokens, joined
from trainer.micro_batch import MicroBatch, PackedBatch
from trainer.rows import group_by_length


class TorchBackend:
    """See `trainer.backends.base.Backend`. Nothing in a step is random."""

    def __init__(
        self,
        model: Path,
        config: TrainerConfig,
        device: Device,
        kind: PolicyKind = PolicyKind.LORA,
        world: World | None = None,
    ) -> None:
        """Load the base model. Raises ConfigError where it cannot be trained exactly."""
        self._config, self._device = config, device
        self._world = world or World.alone()
        if device == "cpu" and config.threads:
            torch.set_num_threads(config.threads)
        if device == "cuda" and self._world.size > 1:
            torch.cuda.set_device(self._world.here.local_rank)  # a thread's own
        self._sharding = Sharding(self._world, config, device) if self._world.size > 1 else None
        make = FullWeights if kind is PolicyKind.FULL else LoraWeights
        self._weights: Weights = make(model, config, device, self._sharding)
        self._network = self._weights.network
        self._optimizer = Optimizer(
            self._weights.trained, config.optimizer, aside=kind is PolicyKind.FULL
        )
        self._shares_rows = keeps_apart(self._network, device)

    @property
    def kind(self) -> PolicyKind:
        return self._weights.kind

    @property
    def vocab_size(self) -> int:
        return int(self._network.head.weight.shape[0])

    @property
    def budget(self) -> int:
        # On a CPU a small one is faster, for the caches, and holds fewer activations.
        return self._config.micro_batch_tokens or (256 if self._device == "cpu" else 16_384)

    @property
    def shares_rows(self) -> bool:
        return self._shares_rows

    @property
    def ranks(self) -> int:
        return self._world.size

    @property
    def tolerance(self) -> float:
        return 0.02 if precision(self._config, self._device) == torch.float32 else 0.5

    def step(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> StepOutcome:
        seen: dict[int, Tokens] = {}
        total = 0.0
        turns = self._turns(batch)
        try:
            references = self._references(turns, cancelled)
            for (place, micro), reference in zip(turns, references, strict=True):
                self._go_on(cancelled)
                tokens = self._tokens(micro.to(self._device), reference)
                # An idle pass has no token: its gradients are 0, and other ranks wait for them.
                value = tokens.current.sum() if place is None else loss(tokens)
                value.backward()  # type: ignore[no-untyped-call]
                if place is not None:
                    total += float(value.detach())
                    seen[place] = tokens.detached()
            if self._sharding is not None:
                summed(weight.grad for weight in self._weights.trained.values())
            total = self._world.total(total)
            norm, lr = self._optimizer.step(total)
        finally:
            self._optimizer.forget_gradients()
        whole = self._world.collect(seen, len(batch.micro))
        return StepOutcome(loss=total, grad_norm=norm, lr=lr, tokens=joined(whole))

    def snapshot(self) -> object:
        return self._optimizer.snapshot()

    def rewind(self, snapshot: object) -> None:
        assert isinstance(snapshot, Snapshot)
        self._optimizer.rewind(snapshot)

    def shrink(self, snapshot: object, share: float) -> None:
        assert isinstance(snapshot, Snapshot)
        self._optimizer.shrink(snapshot, share)

    def logprobs(self, batch: PackedBatch) -> list[Tensor]:
        return self._logprobs(batch, reference=False)

    def reference_logprobs(self, batch: PackedBatch) -> list[Tensor]:
        with self._weights.reference():
            return self._logprobs(batch, reference=True)

    @torch.no_grad()
    def _logprobs(self, batch: PackedBatch, *, reference: bool) -> list[Tensor]:
        found = {}
        for place, micro in self._turns(batch):
            log = self._network(self._network.chosen, micro.to(self._device), reference=reference)
            if place is not None:
                found[place] = log.cpu()
        return self._world.collect(found, len(batch.micro))

    @torch.no_grad()
    def score(self, probes: Sequence[Probe]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in probes]
        for group in group_by_length([len(probe.ids) for probe in probes], self.budget):
            width = max(len(probes[index].ids) for index in group)
            ids = torch.zeros(len(group), width, dtype=torch.int64, device=self._device)
            for row, index in enumerate(group):
                ids[row, : len(probes[index].ids)] = torch.tensor(probes[index].ids)
            spans = [
                (row, probes[index].start, len(probes[index].ids))
                for row, index in enumerate(group)
            ]
            found = self._network(self._network.scores, ids, spans)
            for index, log in zip(group, found, strict=True):
                scores[index] = log.tolist()
        return scores

    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._weights.iter_hf_weights()

    def export(self, directory: Path) -> None:
        self._weights.export(directory)

    def save(self, directory: Path) -> Callable[[], None]:
        return self._optimizer.save(directory, self._sharding)

    def load(self, policy: Path, state: Path) -> None:
        with self._world.together():  # Or who finds no files is waited for in what follows.
            self._weights.load(policy)
        self._optimizer.load(state)

    def reset(self) -> None:
        self._weights.reset()
        self._optimizer.reset()

    def _turns(self, batch: PackedBatch) -> list[tuple[int | None, MicroBatch]]:
        """What this rank computes of a batch, and where each stands in it."""
        return split(batch.micro, self._world.rank, self._world.size)

    def _go_on(self, cancelled: Callable[[], bool]) -> None:
        if self._world.any(cancelled()):
            raise StepAbandoned("the step was asked to end")

    def _references(
        self, turns: Sequence[tuple[int | None, MicroBatch]], cancelled: Callable[[], bool]
    ) -> Sequence[Tensor | None]:
        """States [N, H] of the reference policy a micro-batch, on the CPU; None: made in passing.

        Where other weights have to be brought in, they are brought in once a step.
        """
        if self._weights.inline or not self._config.loss.kl_coef:
            return [None] * len(turns)
        found = []
        with torch.no_grad(), self._weights.reference():
            for _, micro in turns:
                self._go_on(cancelled)
                found.append(self._network(self._network.hidden, micro.to(self._device)).cpu())
        return found

    def _tokens(self, micro: MicroBatch, reference: Tensor | None = None) -> Tokens:
        """What the loss sees of a micro-batch, gradients attached."""
        settings, network = self._config.loss, self._network
        if reference is not None:
            reference = reference.to(self._device)
        elif settings.kl_coef:
            with torch.no_grad(), self._weights.reference():
                reference = network(network.hidden, micro)
        terms = Terms(
            *network(
                network.terms,
                micro,
                reference,
                exact=settings.kl == "exact",
                undecided=settings.entropy_coef > 0,
            )
        )
        return tokens_of(micro, terms)
