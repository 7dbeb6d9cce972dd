"""The sandbox that chat templates run in: jinja2's own, with keys of dicts read without a call."""

from __future__ import annotations

from typing import Any

from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: What a dict answers itself, which jinja2 asks first for `m.name` and last for `m["name"]`.
_OF_DICTS = frozenset(dir(dict))
#: A variable of the generated code. jinja2's own begin with `l_` and `t_`.
_READ = "read_"


class _Inlined(CodeGenerator):
    """Writes `m.name` and `m["name"]` as what `getattr` and `getitem` come to for a plain dict.

    Templates read little else, and each of these calls costs several times the reading. Everything
    that is no plain dict, and every name that a dict has an attribute of, is left to the sandbox.
    """

    environment: Sandbox

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        if not self._read(node, node.attr, "getattr", frame):
            super().visit_Getattr(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - see above
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if not self._read(node, key, "getitem", frame):
            super().visit_Getitem(node, frame)

    def _read(
        self, node: nodes.Getattr | nodes.Getitem, key: object, otherwise: str, frame: Frame
    ) -> bool:
        """Write the reading of a key of what a name stands for; whether it was written."""
        if type(key) is not str or key in _OF_DICTS or not _is_of_a_name(node):
            return False
        self.environment.absent[key] = self.environment.undefined(obj={}, name=key)
        self.write(f"(({_READ}[{key!r}] if {key!r} in {_READ} else ")
        self.write(f"environment.absent[{key!r}]) if type({_READ} := ")
        self.visit(node.node, frame)
        self.write(f") is dict else environment.{otherwise}({_READ}, {key!r}))")
        return True


def _is_of_a_name(node: nodes.Expr) -> bool:
    """Whether it reads of a variable, however deep: of nothing that could be worked out before."""
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node = node.node
    return isinstance(node, nodes.Name)


class Sandbox(ImmutableSandboxedEnvironment):
    """Templates reach what they reach in jinja2's own sandbox, and get the same from it."""

    code_generator_class = _Inlined

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        #: What stands for a key that a dict lacks, of all that are read.
        self.absent: dict[str, Undefined] = {}
