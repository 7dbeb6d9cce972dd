"""Sums over the processes that share a matrix, with the gradients that belong to them.

What every process holds alike is `shared`; what each holds a part of is made whole by `total`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup, ReduceOp, all_reduce


class _Total(Function):
    """Forward the sum, backward the identity: each part counts once in a sum that all hold."""

    @staticmethod
    def forward(_: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        return _reduced(part, group, ReduceOp.SUM)

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Shared(Function):
    """Forward the identity, backward the sum: each process knows the gradient of its part."""

    @staticmethod
    def forward(context: Any, whole: Tensor, group: ProcessGroup) -> Tensor:
        context.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _reduced(gradients[0], context.group, ReduceOp.SUM), None


def total(part: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of the parts of all processes, which each goes on with alike."""
    if group.size() == 1:
        return part
    found: Tensor = _Total.apply(part, group)  # type: ignore[no-untyped-call]
    return found


def shared(whole: Tensor, group: ProcessGroup) -> Tensor:
    """The same tensor, which each process goes on with in its own way."""
    if group.size() == 1:
        return whole
    found: Tensor = _Shared.apply(whole, group)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def largest(part: Tensor, group: ProcessGroup) -> Tensor:
    """The maximum over all processes, without a gradient."""
    return part if group.size() == 1 else _reduced(part, group, ReduceOp.MAX)


def _reduced(part: Tensor, group: ProcessGroup, how: Any) -> Tensor:
    # A copy: the caller's tensor may be saved for a backward pass, or not lie in one piece.
    found = part.detach().clone(memory_format=torch.contiguous_format)
    all_reduce(found, op=how, group=group)
    return found
