"""Stands in for torchvision on a CPU engine's PYTHONPATH.

SGLang 0.5.23 imports it for image models; a text model never calls it. Every submodule can be
imported, every capitalised name in one is an empty class, every other name a function that raises.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

__version__ = "0.0.0"


class _Submodule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _invented(name)
        setattr(self, name, value)
        return value


def _invented(name: str) -> Any:
    if name == "InterpolationMode":
        # Looked up by member at import.
        return enum.Enum(name, "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS")
    if name[0].isupper():
        return type(name, (), {"__init_subclass__": classmethod(lambda _, **__: None)})

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"torchvision's {name} is not installed")

    return missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's signature
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("torchvision."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """A submodule invents its names when they are asked for."""


sys.meta_path.insert(0, _Finder())
