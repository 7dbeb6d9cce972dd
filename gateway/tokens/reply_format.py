"""How a model writes reasoning and tool calls, and the whole-text parser of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.tokens.formats import THINK, CallFormat, Schemas, Thought, format_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """`think`: what leads a reply as `thought` says is reasoning. `calls`: how calls are written.

    `prefilled`: the prompt has opened the reasoning already. Calls of tools in `schemas` get
    arguments of the types that these say. With none of them the reply is `plain`. `marks` are texts
    that are read even where they are special tokens, `wrappers` are tokens that are never shown,
    special or not.
    """

    think: bool = False
    calls: CallFormat | None = None
    prefilled: bool = False
    thought: Thought = THINK
    schemas: Schemas = field(default_factory=dict)
    plain: bool = field(init=False, compare=False)
    marks: tuple[str, ...] = field(init=False, compare=False)
    wrappers: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        calls = self.calls
        own = calls.marks if calls else ()
        object.__setattr__(self, "plain", not (calls or self.think or self.prefilled))
        object.__setattr__(self, "marks", (*self.thought.marks, *own))
        object.__setattr__(self, "wrappers", calls.wrappers if calls else ())

    @classmethod
    def of(
        cls,
        template: str,
        *,
        prompt_end: str,
        tools: Sequence[Mapping[str, Any]] = (),
        form: CallFormat | None = None,
    ) -> ReplyFormat:
        """The form that a chat template prompts for.

        `prompt_end` is the text of the prompt's last few ids; `tools` are those that may be called;
        `form` is how the template writes calls, where that is known already.
        """
        functions = [tool["function"] for tool in tools]
        form = form or format_of(template)
        think = form.thought.sign in template
        return cls(
            think=think,
            calls=form if tools else form.untooled,
            prefilled=think and prompt_end.rstrip().endswith(form.thought.open),
            thought=form.thought,
            schemas={one["name"]: one.get("parameters") or {} for one in functions},
        )


PLAIN = ReplyFormat()


class SplitReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reply taken apart; `calls` are (name, arguments as JSON text)."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def split(text: str, form: ReplyFormat) -> SplitReply:
    """Take a whole reply apart. The incremental splitter is held to this."""
    reasoning = ""
    thought = form.thought
    opened = form.think and text.lstrip().startswith(thought.open)
    if form.prefilled or opened:
        body = text if form.prefilled else text.lstrip()[len(thought.open) :]
        head, _, rest = body.partition(thought.close)
        reasoning, text = head.strip("\n"), rest.lstrip("\n")
    if form.calls is None:
        return SplitReply(text=text, reasoning=reasoning)
    taken = form.calls.take(text, form.schemas)
    return SplitReply(text=taken.text, reasoning=reasoning + taken.reasoning, calls=taken.calls)
