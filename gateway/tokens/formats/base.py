"""What a way of writing tool calls is: read whole, read as it comes, and enforced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.records import Delta

#: The JSON schema of each tool's arguments, by the tool's name.
Schemas = Mapping[str, Mapping[str, Any]]

#: One node of an xgrammar structural tag.
Tag = dict[str, Any]

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A text without its calls; `calls` are (name, arguments as JSON text).

    `reasoning` is what forms with channels find among them.
    """

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """How reasoning is written before an answer: between `open` and `close`.

    `sign` is what the chat template of such a model contains, `marks` are the tokens that the two
    are made of. `gap` stands between reasoning and what follows it.
    """

    open: str
    close: str
    sign: str
    marks: tuple[str, ...]
    gap: str


THINK = Thought(
    open="<think>",
    close="</think>",
    sign="</think>",
    marks=("<think>", "</think>"),
    gap="\n\n",
)


class CallReader(ABC):
    """Text in, deltas out, the same for any cutting. `_state` returns whether there is more to do.

    A call is shown as soon as its name is known and its arguments begin; what cannot become a
    call any more is shown as text.
    """

    def __init__(self, mint: Callable[[], str]) -> None:
        self._mint = mint
        self._buffer = ""
        self._out: list[Delta] = []
        self._calls = 0
        self._state: Callable[[bool], bool] = self._in_text

    @abstractmethod
    def _in_text(self, final: bool) -> bool: ...

    def feed(self, text: str, *, final: bool = False) -> list[Delta]:
        """Deltas that `text` adds; `final` says that nothing follows."""
        self._buffer += text
        while self._state(final):
            pass
        out, self._out = self._out, []
        return out

    def _show(self, text: str) -> None:
        if text:
            self._out.append(Delta(text=text))

    def _open(self, name: str) -> None:
        self._out.append(Delta(call_index=self._calls, call_id=self._mint(), call_name=name))
        self._calls += 1

    def _arguments(self, text: str) -> None:
        if text:
            self._out.append(Delta(call_index=self._calls - 1, arguments=text))


class CallFormat(Protocol):
    """How the models of some families write tool calls.

    `marks` are texts that are read even where the vocabulary has them as special tokens,
    `wrappers` say nothing and are never shown. A reply is told to end at one of
    `one_call_stops` where it may have one call at most.
    """

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    @property
    def wrappers(self) -> tuple[str, ...]: ...

    @property
    def one_call_stops(self) -> tuple[str, ...]: ...

    @property
    def thought(self) -> Thought:
        """How its models write reasoning, if their chat template says that they do."""
        ...

    @property
    def untooled(self) -> ChannelFormat | None:
        """What reads replies of such a model where no tool may be called; None: they are plain.

        A form that has one reads whole replies, reasoning as well, and is it itself if it reads
        no calls.
        """
        ...

    def fits(self, template: str) -> bool:
        """Whether a model with this chat template writes calls in this form."""
        ...

    def take(self, text: str, schemas: Schemas) -> Taken:
        """Take the calls out of a whole text. The reader is held to this."""
        ...

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:
        """A fresh reader for one reply; `mint` gives each call its id."""
        ...

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        """One call of `tools` or, if `parallel`, several, as the model would write them."""
        ...


class ChannelFormat(CallFormat, Protocol):
    """A form whose replies are messages that say what they are: reasoning, an answer, a call."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The tokens that end a message."""
        ...

    def is_reasoning(self, message: str) -> bool:
        """Whether a message is reasoning, by how it begins."""
        ...

    def answered(self, body: Tag) -> Tag:
        """An answer that is no call, in its channel."""
        ...

    def after_reasoning(self, body: Tag) -> Tag:
        """The same with reasoning before it, or none."""
        ...


def schema_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments; one without parameters takes an empty object."""
    found: Mapping[str, Any] = function.get("parameters") or _NO_ARGUMENTS
    return found


def calls_tag(
    tags: Sequence[Tag], *, separator: str, parallel: bool, opening: str = "", closing: str = ""
) -> Tag:
    """Calls one after the other, between what begins and ends all of them."""
    body: Tag = {
        "type": "tags_with_separator",
        "separator": separator,
        "tags": list(tags),
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if not opening and not closing:
        return body
    ends = [{"type": "const_string", "value": closing}] if closing else []
    starts = [{"type": "const_string", "value": opening}] if opening else []
    return {"type": "sequence", "elements": [*starts, body, *ends]}


def json_tag(begin: str, end: str, function: Mapping[str, Any]) -> Tag:
    """`begin`, the function's arguments by its schema, `end`."""
    return {
        "type": "tag",
        "begin": begin,
        "content": {"type": "json_schema", "json_schema": schema_of(function)},
        "end": end,
    }
