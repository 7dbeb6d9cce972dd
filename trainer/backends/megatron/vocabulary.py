"""Log-probabilities of chosen tokens where each process holds some rows of the output layer.

n are tokens of a chunk, N of all, H the hidden width, v the rows that this process holds. The
formulas are those of `trainer.backends.vocabulary`; -vocab_parallel_cross_entropy of Megatron is
`chosen` at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import linear

from trainer.backends.megatron.collective import largest, shared, total
from trainer.backends.vocabulary import Asked, Lesson, Terms, among, in_pieces, pieces
from trainer.losses import topk_reverse_kl


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The output layer [v, H] of this process, whose first row is that of the id `first`."""

    weight: Tensor
    first: int
    group: ProcessGroup

    def logits(self, states: Tensor) -> Tensor:
        """[n, H] to [n, v], float32."""
        return linear(shared(states.to(self.weight.dtype), self.group), self.weight).float()

    def at(self, logits: Tensor, ids: Tensor) -> Tensor:
        """[n, K] of [n, v] at `ids` [n, K], whichever process holds them."""
        local = ids - self.first
        mine = (local >= 0) & (local < logits.shape[-1])
        found = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1))
        return total(found.masked_fill(~mine, 0.0), self.group)

    def normalizer(self, logits: Tensor) -> Tensor:
        """Ln Σ e^logits over the whole vocabulary [n, 1]."""
        top = largest(logits.detach().amax(-1, keepdim=True), self.group)
        return top + total((logits - top).exp().sum(-1, keepdim=True), self.group).log()

    def log_softmax(self, logits: Tensor, normalizer: Tensor) -> Tensor:
        """Log-probabilities [n, v] of the ids of this process."""
        return logits - shared(normalizer, self.group)


class ShardedVocabulary:
    """The output layer with its chunk size; `reference` is that of the reference policy."""

    def __init__(self, rows: Rows, chunk: int, reference: Rows | None = None) -> None:
        self._rows, self._chunk = rows, chunk
        self._reference = reference or rows

    def chosen(
        self, states: Tensor, targets: Tensor, temperature: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities [N] of `targets` [N] from hidden states [N, H].

        Where `kept` [N, M] names ids, among these alone.
        """
        parts = []
        for piece in pieces(len(states), self._chunk):
            asked = Asked(targets[piece], temperature[piece], None if kept is None else kept[piece])
            scaled = self._rows.logits(states[piece]) / asked.temperature[:, None]
            parts.append(_chosen(self._rows, scaled, self._rows.normalizer(scaled), asked))
        return torch.cat(parts)

    def terms(
        self,
        states: Tensor,
        reference: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        *,
        exact: bool,
        undecided: bool = False,
        plain: bool = False,
        lesson: Lesson | None = None,
        kept: Tensor | None = None,
    ) -> Terms:
        """See `trainer.backends.vocabulary.Vocabulary.terms`."""
        make = partial(self._piece, exact=exact, undecided=undecided, plain=plain)
        asked = Asked(targets, temperature, kept)
        return in_pieces(make, states, reference, asked, lesson, chunk=self._chunk)

    def _piece(
        self,
        states: Tensor,
        reference: Tensor | None,
        asked: Asked,
        lesson: Lesson | None,
        *,
        exact: bool,
        undecided: bool,
        plain: bool,
    ) -> tuple[Tensor | None, ...]:
        rows = self._rows
        logits = rows.logits(states)
        scaled = logits / asked.temperature[:, None]
        normalizer = rows.normalizer(scaled)
        current = _chosen(rows, scaled, normalizer, asked)
        log = rows.log_softmax(scaled, normalizer)
        seen = log if undecided else log.detach()
        entropy = -total((seen.exp() * seen).sum(-1), rows.group)
        picked = kl = told = distilled = None
        if reference is not None:
            with torch.no_grad():
                base = self._reference.logits(reference) / asked.temperature[:, None]
                whole = self._reference.normalizer(base)
                picked = _chosen(self._reference, base, whole, asked)
            if exact:
                kl = total((log.exp() * (log - (base - whole))).sum(-1), rows.group)
        if plain:
            told = _chosen(
                rows, logits, rows.normalizer(logits), Asked(asked.targets, asked.temperature, None)
            ).detach()
        if lesson is not None:
            student = rows.at(logits, lesson.ids) - rows.normalizer(logits)
            distilled = topk_reverse_kl(student, lesson.logprobs)
        return current, entropy, picked, kl, told, distilled


def _chosen(rows: Rows, scaled: Tensor, normalizer: Tensor, asked: Asked) -> Tensor:
    """Log-probabilities [n] of the asked tokens, among what they were sampled from."""
    chosen = asked.targets[:, None]
    if asked.kept is None:
        return (rows.at(scaled, chosen) - normalizer)[:, 0]
    # A table [n, 1 + M] of the few log-probabilities that matter stands for the vocabulary.
    table = rows.at(scaled, torch.cat((chosen, asked.kept.clamp(min=0)), -1)) - normalizer
    places = torch.arange(1, table.shape[-1], device=table.device).expand_as(asked.kept)
    return among(table, torch.zeros_like(asked.targets), places.masked_fill(asked.kept < 0, -1))
