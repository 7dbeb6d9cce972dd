"""What the output layer holds at a time, counted on tensors that have a shape and no contents."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gateway.records import PolicyKind
from tests.tiny_llama import make_llama, sample
from trainer.backends.torch_backend import TorchBackend
from trainer.backends.vocabulary import Vocabulary
from trainer.config import TrainerConfig
from trainer.packing import pack

TOKENS, WORDS, WIDTH = 16_384, 151_936, 64
#: Of logits in float32: of all tokens, and of one chunk of 512.
WHOLE, CHUNK = TOKENS * WORDS * 4, 512 * WORDS * 4


class Live(TorchDispatchMode):
    """Bytes of all storages made inside that are still held, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def live() -> Iterator[Live]:
    with Live() as counted:
        yield counted


def passed(chunk: int, *, exact: bool) -> tuple[int, int]:
    """Bytes held between the passes, and the peak of both, of one long reply."""
    head = torch.nn.Linear(WIDTH, WORDS, bias=False, device="meta")
    states = torch.zeros(TOKENS, WIDTH, device="meta", requires_grad=True)
    targets = torch.zeros(TOKENS, dtype=torch.int64, device="meta")
    warm = torch.ones(TOKENS, device="meta")
    with live() as counted:
        terms = Vocabulary(head, chunk).terms(
            states, states.detach() if exact else None, targets, warm, exact=exact
        )
        loss = terms.current.sum() + (terms.kl.sum() if terms.kl is not None else 0)
        held = counted.now
        loss.backward()
    assert states.grad is not None
    return held, counted.peak


def test_logits_of_a_long_reply_are_never_held_whole() -> None:
    """16,384 tokens of 151,936 words: 9.96 GB a copy of all logits, 0.31 GB one of a chunk's.

    Four copies are there at the peak (logits, at the temperature, their logarithms, a gradient):
    1.3 GB in chunks of 512 instead of 39.9 GB, and 0.04 GB between the passes instead of 10 GB.
    """
    held, peak = passed(512, exact=False)
    whole_held, whole_peak = passed(TOKENS, exact=False)
    assert held < CHUNK / 4
    assert peak < 4.5 * CHUNK
    assert whole_held > WHOLE
    assert whole_peak > 4 * WHOLE
    # The KL over all words brings the reference's logits and the divergence's own gradients.
    held, peak = passed(512, exact=True)
    assert held < CHUNK / 4
    assert peak < 9 * CHUNK


def kept(model: Path, recompute: str) -> tuple[Tensor, int]:
    """Log-probabilities of a pass, and the bytes that it keeps for the backward pass."""
    config = TrainerConfig.model_validate({"recompute": recompute, "loss": {"kl_coef": 0}})
    backend = TorchBackend(model, config, "cpu", PolicyKind.FULL)
    weights = {weight.untyped_storage().data_ptr() for weight in backend._weights.trained.values()}
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = pack([sample([1] * 20, [2] * 100)], [(1.0,) * 100], vocab=64, budget=256)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tokens = backend._tokens(batch.micro[0])
    return tokens.current.detach(), sum(storages.values())


def test_recomputed_layers_keep_their_inputs_only(tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    plain, everything = kept(model, "never")
    again, inputs = kept(model, "layers")
    assert torch.equal(plain, again)
    assert inputs < 0.4 * everything
