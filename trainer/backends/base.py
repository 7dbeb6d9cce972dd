"""What a training back end can do. Losses, credit and publishing know nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from gateway.errors import TrainerError
from gateway.records import PolicyKind
from trainer.losses import TokenLoss, Tokens
from trainer.micro_batch import PackedBatch


class StepAbandoned(TrainerError):
    """The step was asked to end early; no weight has changed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A sequence whose tokens from `start` (at least 1) on are scored at temperature 1."""

    ids: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Probes, and their log-probabilities by the policy in memory: each [len(ids) - start].

    An engine proves that it serves that policy by differing from none by more than `tolerance`.
    """

    probes: tuple[Probe, ...]
    expected: tuple[tuple[float, ...], ...]
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """A step that was taken. `tokens` [N of the whole batch], detached, in packing order.

    `grad_norm` is taken before clipping.
    """

    loss: float
    grad_norm: float
    lr: float
    tokens: Tokens


class Backend(Protocol):
    """One policy with its optimizer. Blocking; one thread at a time.

    Where several ranks share a policy, every method is called by all of them with the same
    arguments, and gives the same on each; files are written to a directory that all of them see.
    """

    @property
    def kind(self) -> PolicyKind: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def budget(self) -> int:
        """Padded tokens of a micro-batch."""
        ...

    @property
    def shares_rows(self) -> bool:
        """Whether a row may hold several sequences, told apart by their positions."""
        ...

    @property
    def ranks(self) -> int:
        """Micro-batches that are computed at a time, each by ranks of its own."""
        ...

    @property
    def tolerance(self) -> float:
        """How far a log-probability of an engine of the same precision may be off, in nats."""
        ...

    def step(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> StepOutcome:
        """One optimizer step on the whole batch; the gradient does not depend on its packing.

        The proximal policy is the one that the batch brings, or the one before the step; so is
        the student of a batch that is taught, at temperature 1. Raises
        NonFinite, or StepAbandoned once `cancelled()` is true; either way nothing has changed.
        """
        ...

    def snapshot(self) -> object:
        """The policy and its optimizer as they are, for `rewind` and `shrink`."""
        ...

    def rewind(self, snapshot: object) -> None:
        """Go back to a snapshot."""
        ...

    def shrink(self, snapshot: object, share: float) -> None:
        """Keep only a share of what the weights have moved since a snapshot."""
        ...

    def logprobs(self, batch: PackedBatch) -> list[Tensor]:
        """Log-probabilities of the sampled tokens, [N] a micro-batch, at their temperature."""
        ...

    def reference_logprobs(self, batch: PackedBatch) -> list[Tensor]:
        """The same under the reference policy. Raises TrainerError where none is kept."""
        ...

    def score(self, probes: Sequence[Probe]) -> list[list[float]]:
        """Log-probabilities of ids[start:] of each probe at temperature 1."""
        ...

    def iter_hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights of the policy by their Hugging Face names, one at a time, on the CPU.

        Adapters are merged. What an engine is given that takes weights rather than files.
        """
        ...

    def export(self, directory: Path) -> None:
        """Write the policy as engines load it."""
        ...

    def save(self, directory: Path) -> Callable[[], None]:
        """Write what, with the exported policy, continues to the same losses.

        What waits for the end of it, and raises OSError: other calls may come before.
        """
        ...

    def load(self, policy: Path, state: Path) -> None:
        """Continue from an exported policy and the state saved with it.

        Raises ConfigError where the policy is not one that these settings train.
        """
        ...

    def reset(self) -> None:
        """Go back to version 0: the base model and a fresh optimizer."""
        ...
