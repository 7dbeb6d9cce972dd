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

from trainer.losses import Tokens, kl_exact, topk_reverse_kl
from trainer.losses import entropy as entropy_of
from trainer.micro_batch import MicroBatch

#: The output layer: [n, H] to [n, V].
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of N tokens; `reference` and `kl` where a reference was given.

    `plain` is `current` at temperature 1, detached, and `distilled` the divergence from a
    teacher's tokens, each where it was asked for.
    """

    current: Tensor
    entropy: Tensor
    reference: Tensor | None
    kl: Tensor | None
    plain: Tensor | None
    distilled: Tensor | None


@dataclass(frozen=True, slots=True)
class Lesson:
    """A teacher's tokens [N, K] and their log-probabilities [N, K] at temperature 1."""

    ids: Tensor
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Asked:
    """Tokens [n], their temperatures [n], and the ids [n, M] that they were sampled from."""

    targets: Tensor
    temperature: Tensor
    kept: Tensor | None


class Vocabulary:
    """The output layer with its chunk size; `reference` is that of the reference policy."""

    def __init__(self, head: Head, chunk: int, reference: Head | None = None) -> None:
        self._head, self._chunk = head, chunk
        self._reference = reference or head

    def chosen(
        self, states: Tensor, targets: Tensor, temperature: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities [N] of `targets` [N] from hidden states [N, H].

        Where `kept` [N, M] names ids, among these alone.
        """
        parts = []
        for piece in pieces(len(states), self._chunk):
            log = self._log_softmax(states[piece], temperature[piece])
            parts.append(among(log, targets[piece], None if kept is None else kept[piece]))
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
        """The same with gradients, entropy, and the reference's from its states [N, H].

        With `exact` the KL to the reference is summed over the whole vocabulary; with `undecided`
        the entropy carries gradients too. A `lesson` gives the divergence over its K + 1 bins.
        Where `kept` [N, M] names ids, the token's log-probabilities are among these alone;
        entropy and exact KL are of the whole distribution.
        """
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
        logits = self._head(states).float()
        log = torch.log_softmax(logits / asked.temperature[:, None], dim=-1)
        current = among(log, asked.targets, asked.kept)
        entropy = entropy_of(log if undecided else log.detach())
        picked = kl = told = distilled = None
        if reference is not None:
            with torch.no_grad():
                base = self._reference(reference).float() / asked.temperature[:, None]
                base = torch.log_softmax(base, dim=-1)
                picked = among(base, asked.targets, asked.kept)
            kl = kl_exact(log, base) if exact else None
        if plain:
            told = (_at(logits, asked.targets) - logits.logsumexp(-1)).detach()
        if lesson is not None:
            student = logits.gather(-1, lesson.ids) - logits.logsumexp(-1, keepdim=True)
            distilled = topk_reverse_kl(student, lesson.logprobs)
        return current, entropy, picked, kl, told, distilled

    def _log_softmax(self, states: Tensor, temperature: Tensor) -> Tensor:
        """[n, H] and [n] to [n, V], float32."""
        return torch.log_softmax(self._head(states).float() / temperature[:, None], dim=-1)


def tokens_of(micro: MicroBatch, terms: Terms) -> Tokens:
    """What the loss sees of a micro-batch, gradients attached."""
    lesson = micro.lesson
    return Tokens(
        current=terms.current,
        proximal=terms.current.detach() if micro.proximal is None else micro.proximal,
        behaviour=micro.behaviour,
        advantages=micro.advantages,
        entropy=terms.entropy,
        samples=micro.samples,
        lags=micro.lags,
        reference=terms.reference,
        kl=terms.kl,
        teacher=None if lesson is None else lesson.teacher,
        student=terms.plain if micro.student is None else micro.student,
        taught=None if lesson is None else lesson.taught,
        distilled=terms.distilled,
        distils=None if lesson is None else lesson.distils,
    )


def among(log: Tensor, targets: Tensor, kept: Tensor | None) -> Tensor:
    """Log-probabilities [n] of `targets` [n] from those of all ids [n, V].

    Where a row of `kept` [n, M] names ids, those after sampling was cut to them:
    ln p - ln Σ p over the row. -1 names none.
    """
    chosen = _at(log, targets)
    if kept is None:
        return chosen
    mass = log.gather(-1, kept.clamp(min=0)).masked_fill(kept < 0, -torch.inf)
    whole = kept[:, 0] < 0
    # A row of nothing but -inf would have no gradient; its sum is of what it names: everything.
    mass = torch.where(whole[:, None], torch.zeros_like(mass[:, :1]), mass)
    return chosen - torch.where(whole, torch.zeros_like(chosen), mass.logsumexp(-1))


def _at(values: Tensor, ids: Tensor) -> Tensor:
    """[n] of [n, V] at `ids` [n]."""
    return values.gather(-1, ids[:, None]).squeeze(-1)


def pieces(count: int, chunk: int) -> Iterator[slice]:
    # No tokens are one empty piece, so that a pass that trains nothing has gradients too.
    return (slice(at, at + chunk) for at in range(0, max(count, 1), chunk))


def in_pieces(
    make: Callable[..., tuple[Tensor | None, ...]],
    states: Tensor,
    reference: Tensor | None,
    asked: Asked,
    lesson: Lesson | None,
    *,
    chunk: int,
) -> Terms:
    """Terms of all tokens from what `make` gives of a chunk of them at a time."""
    parts = []
    for piece in pieces(len(states), chunk):
        kept = None if asked.kept is None else asked.kept[piece]
        arguments = (
            states[piece],
            None if reference is None else reference[piece],
            Asked(asked.targets[piece], asked.temperature[piece], kept),
            None if lesson is None else Lesson(lesson.ids[piece], lesson.logprobs[piece]),
        )
        # One chunk alone may keep its logits; several are made again in the backward pass.
        parts.append(
            make(*arguments)
            if len(states) <= chunk
            else checkpoint(make, *arguments, use_reentrant=False)
        )
    current, entropy, *others = zip(*parts, strict=True)
    return Terms(torch.cat(current), torch.cat(entropy), *map(_joined, others))


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """[N] from its pieces, where they were asked for."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None
