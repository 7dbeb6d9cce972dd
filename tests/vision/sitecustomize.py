"""Read by a CPU engine before anything else, so that it can run an image model.

torchvision's wheel is built against CUDA: its kernels cannot be loaded, and its import needs two of
them to be declared. So it is with the import of SGLang's image models and its own kernels.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

#: By package; none of them is ever called, so any parameters do.
_DECLARED = {
    "torchvision": ("nms", "qnms"),
    "sgl_kernel": (
        "fused_sigmoid_mul_cpu",
        "fused_qk_gemma_rmsnorm_cpu",
        "fused_qk_gemma_rmsnorm_with_gate_cpu",
        "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    ),
}
#: Declarations last as long as these do.
_libraries: list[Any] = []


class _BeforeImport(importlib.abc.MetaPathFinder):
    """Declares what a package needs once it is about to be imported, and finds nothing itself."""

    def __init__(self) -> None:
        self._left = dict(_DECLARED)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if declared := self._left.pop(fullname, ()):
            import torch

            library = torch.library.Library(fullname, "FRAGMENT")
            _libraries.append(library)
            for name in declared:
                library.define(f"{name}(Tensor a) -> Tensor")
        return None


sys.meta_path.insert(0, _BeforeImport())
