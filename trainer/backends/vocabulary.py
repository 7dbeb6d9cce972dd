"""Log-probabilities of chosen tokens, the logits of a chunk held at a time.

n are tokens of a chunk, N of all, H the hidden width, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.losses import entropy as entropy_of
from trainer.losses import kl_exact

#: The output layer: [n, H] to [n, V].
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of N tokens; `reference` and `kl` where a reference was given."""

    current: Tensor
    entropy: Tensor
    reference: Tensor | None
    kl: Tensor | None


class Vocabulary:
    """The output layer with its chunk size."""

    def __init__(self, head: Head, chunk: int) -> None:
        self._head, self._chunk = head, chunk

    def chosen(self, states: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
        """Log-probabilities [N] of `targets` [N] from hidden states [N, H]."""
        return torch.cat(
            [
                self._log_softmax(states[piece], temperature[piece])
                .gather(-1, targets[piece, None])
                .squeeze(-1)
                for piece in self._pieces(len(states))
            ]
        )

    def terms(
        self,
        states: Tensor,
        reference: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        *,
        exact: bool,
        undecided: bool = False,
    ) -> Terms:
        """The same with gradients, entropy, and the reference's from its states [N, H].

        With `exact` the KL to the reference is summed over the whole vocabulary; with `undecided`
        the entropy carries gradients too.
        """
        parts = []
        make = partial(self._piece, exact=exact, undecided=undecided)
        for piece in self._pieces(len(states)):
            arguments = (
                states[piece],
                None if reference is None else reference[piece],
                targets[piece],
                temperature[piece],
            )
            # One chunk alone may keep its logits; several are made again in the backward pass.
            parts.append(
                make(*arguments)
                if len(states) <= self._chunk
                else checkpoint(make, *arguments, use_reentrant=False)
            )
        current, entropy, picked, kl = zip(*parts, strict=True)
        return Terms(torch.cat(current), torch.cat(entropy), _joined(picked), _joined(kl))

    def _piece(
        self,
        states: Tensor,
        reference: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        *,
        exact: bool,
        undecided: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        log = self._log_softmax(states, temperature)
        current = log.gather(-1, targets[:, None]).squeeze(-1)
        entropy = entropy_of(log if undecided else log.detach())
        if reference is None:
            return current, entropy, None, None
        with torch.no_grad():
            base = self._log_softmax(reference, temperature)
            picked = base.gather(-1, targets[:, None]).squeeze(-1)
        return current, entropy, picked, kl_exact(log, base) if exact else None

    def _log_softmax(self, states: Tensor, temperature: Tensor) -> Tensor:
        """[n, H] and [n] to [n, V], float32."""
        return torch.log_softmax(self._head(states).float() / temperature[:, None], dim=-1)

    def _pieces(self, count: int) -> Iterator[slice]:
        return (slice(at, at + self._chunk) for at in range(0, count, self._chunk))


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """[N] from its pieces, where they were asked for."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None
