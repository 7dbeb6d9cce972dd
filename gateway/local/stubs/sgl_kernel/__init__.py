"""Stands in for SGLang's CUDA kernel wheel where there is no GPU, on a CPU engine's PYTHONPATH.

SGLang 0.5.23 imports `sgl_kernel` unconditionally, and the wheel cannot be imported without CUDA
libraries. A dense text model on the `torch_native` backend calls one function of it, which is
here in full; every other name raises NotImplementedError when it is called.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 - the wheel's signature
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,  # noqa: ARG001
) -> None:
    """Write each request's new cache slots into its row, in place.

    `req_to_token` is [requests, pool_len]; request i of the batch [B] takes the next
    `end[i] - start[i]` entries of `out_cache_loc` [sum] at columns start[i] to end[i].
    """
    taken = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        count = last - first
        slots = out_cache_loc[taken : taken + count]
        req_to_token[row, first:last] = slots.to(req_to_token.dtype)
        taken += count


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    missing.__name__ = name
    return missing


def _without_pinning(factory: Any) -> Any:
    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:  # noqa: ARG001
        return factory(*args, **kwargs)

    return make


#: Factories of which SGLang's LoRA code asks pinned memory without looking for an accelerator;
#: torch refuses that on a machine without one.
_FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "full", "ones", "tensor", "zeros",
    "zeros_like",
)  # fmt: skip

if not torch.cuda.is_available():
    for _name in _FACTORIES:
        setattr(torch, _name, _without_pinning(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
