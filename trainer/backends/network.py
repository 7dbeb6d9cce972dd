"""Trunk and output layer as one module, so that weights spread over ranks are gathered once a pass.

Whatever reads weights goes through `Network.__call__`, with what is to be done:
`network(network.hidden, ids, places)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.backends.vocabulary import Lesson, Terms, Vocabulary
from trainer.micro_batch import MicroBatch

P = ParamSpec("P")
T = TypeVar("T")


class Network(torch.nn.Module):
    """A causal model of Hugging Face's, `chunk` tokens' logits at a time.

    `reference_head` is the output layer of the reference policy, where it is another one.
    """

    def __init__(
        self, causal: Any, chunk: int, reference_head: torch.nn.Linear | None = None
    ) -> None:
        super().__init__()
        self.causal = causal
        self.reference_head = reference_head
        self._chunk = chunk

    def forward(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Results are tensors or tuples of them, where what gathers weights finds gradients."""
        return do(*args, **kwargs)

    @property
    def head(self) -> Any:
        return self.causal.get_output_embeddings()

    @property
    def layers(self) -> list[torch.nn.Module]:
        """What is recomputed or gathered as a whole."""
        whole = set(self.causal._no_split_modules or ())  # noqa: SLF001
        return [part for part in self.causal.modules() if type(part).__name__ in whole]

    def recompute(self) -> None:
        """Keep only the input of each layer for the backward pass. Nothing in them is random."""
        for layer in self.layers:
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )

    @property
    def trunk(self) -> Any:
        return getattr(self.causal, self.causal.base_model_prefix)

    def states(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Final hidden states [b, T, H] of ids [b, T].

        Where rows hold several sequences (see `MicroBatch`), attention is kept inside each.
        """
        where = {} if positions is None else {"position_ids": positions}
        found: Tensor = self.trunk(input_ids=ids, use_cache=False, **where).last_hidden_state
        return found

    def hidden(self, micro: MicroBatch) -> Tensor:
        """Those [N, H] from which the sampled tokens are predicted."""
        return self.states(micro.ids, micro.positions).flatten(0, 1)[micro.places]

    def chosen(self, micro: MicroBatch, *, reference: bool = False) -> Tensor:
        """Log-probabilities [N] of the sampled tokens; by the reference policy's output layer."""
        head = self.reference_head if reference and self.reference_head is not None else self.head
        return Vocabulary(head, self._chunk).chosen(
            self.hidden(micro), micro.targets, micro.temperature, micro.kept
        )

    def terms(
        self, micro: MicroBatch, reference: Tensor | None, *, exact: bool, undecided: bool
    ) -> tuple[Tensor | None, ...]:
        """The fields of `Terms`, gradients attached; `reference` [N, H] as `hidden` gave it."""
        lesson, top = micro.lesson, None
        if lesson is not None and lesson.top_ids is not None and lesson.top_logprobs is not None:
            top = Lesson(lesson.top_ids, lesson.top_logprobs)
        found = Vocabulary(self.head, self._chunk, self.reference_head).terms(
            self.hidden(micro),
            reference,
            micro.targets,
            micro.temperature,
            exact=exact,
            undecided=undecided,
            plain=lesson is not None,
            lesson=top,
            kept=micro.kept,
        )
        return tuple(getattr(found, name) for name in Terms.__slots__)

    def scores(self, ids: Tensor, spans: list[tuple[int, int, int]]) -> tuple[Tensor, ...]:
        """Log-probabilities at temperature 1 of ids[row, start:end] for each (row, start, end)."""
        states, vocabulary = self.states(ids), Vocabulary(self.head, self._chunk)
        return tuple(
            vocabulary.chosen(
                states[row, start - 1 : end - 1],
                ids[row, start:end],
                torch.ones(end - start, device=ids.device),
            )
            for row, start, end in spans
        )
