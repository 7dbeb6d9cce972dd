"""Megatron-core on a CPU: what it asks of CUDA is answered by the CPU, and every asker counted.

For tests alone. `SITES` are the functions of `megatron.core` that needed an answer; a version that
asks elsewhere shows up in the test that compares them.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Calls by what was asked for and the function that asked.
SITES: Counter[str] = Counter()

CPU = torch.device("cpu")


def compile_nothing() -> None:
    """Before Megatron is loaded: torch's compiler takes longer to load than the tests to run."""
    torch.compile = _as_it_is  # type: ignore[assignment]


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function if function is not None else _as_it_is


def install() -> None:
    """For the rest of the process."""
    cuda: Any = torch.cuda
    cuda.current_device = _answer("current_device", CPU)
    cuda.synchronize = _answer("synchronize", None)
    cuda.empty_cache = _answer("empty_cache", None)
    cuda.current_stream = _answer("current_stream", _Stream())
    cuda.default_stream = _answer("default_stream", _Stream())
    cuda.Stream = _Stream
    cuda.stream = lambda _: contextlib.nullcontext()
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = _answer("get_rng_state", torch.get_rng_state)
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    _OnCpu().__enter__()


class _OnCpu(TorchFunctionMode):
    """`device="cuda"` is the CPU, `.cuda()` changes nothing, and types have CUDA's names."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if _is_cuda(named.get("device")):
            _count("device")
            named = {**named, "device": CPU}
        if function is torch.Tensor.cuda:
            _count("cuda")
            return args[0]
        if function is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            _count("to")
            args = (args[0], CPU, *args[2:])
        found = function(*args, **named)
        if function is torch.Tensor.type and len(args) == 1 and not named:
            _count("type")
            return found.replace("torch.", "torch.cuda.", 1)
        return found


class _Stream:
    """Everything is done when it is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *_: Any) -> None: ...


def _is_cuda(device: Any) -> bool:
    return str(device).startswith("cuda")


def _answer(name: str, value: Any) -> Callable[..., Any]:
    def asked(*_: Any, **__: Any) -> Any:
        _count(name)
        return value() if callable(value) and not isinstance(value, _Stream) else value

    return asked


def _count(what: str) -> None:
    """By the innermost function of Megatron that is being computed, if any is."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/megatron/core/" in path:
            SITES[f"{what} {path.split('/megatron/core/')[-1]}:{frame.f_code.co_name}"] += 1
            return
        frame = frame.f_back  # type: ignore[assignment]
