"""What a client sees of sampled tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

#: The key of a stored reply under which its `order` stands. Clients are never shown it.
ORDER = "order"

_RANKS = {"reasoning": 0, "text": 1, "call": 2}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    name: str
    arguments: str


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What newly sampled tokens add to the reply that a client sees.

    `call_index` with `call_id` and `call_name` opens a tool call, with `arguments` extends it.
    """

    text: str = ""
    reasoning: str = ""
    call_index: int | None = None
    call_id: str | None = None
    call_name: str | None = None
    arguments: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.call_index is not None)


#: (`reasoning`, `text` or `call`, how many characters or calls).
Run = tuple[str, int]


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole assistant reply, parsed from its ids.

    `order` says how its parts followed one another where that was not as usual: reasoning, text,
    calls.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    order: tuple[Run, ...] = ()

    def ordered(self, deltas: Iterable[Delta]) -> Reply:
        """The same in the order in which it was told."""
        if not self.tool_calls and not self.reasoning:
            return self
        runs = _runs(deltas)
        ranks = [_RANKS[kind] for kind, _ in runs]
        return self if ranks == sorted(ranks) else replace(self, order=tuple(runs))

    def parts(self) -> list[Reply]:
        """One thing each, as they followed one another: reasoning, text, or a call.

        An order that does not fit (something was taken out of what is stored) is left alone.
        """
        parts: list[Reply] = []
        at = dict.fromkeys(_RANKS, 0)
        usual = [("reasoning", len(self.reasoning)), ("text", len(self.text))]
        sizes = dict([*usual, ("call", len(self.tool_calls))])
        for kind, size in self.order if self._fits(sizes) else sizes.items():
            start, at[kind] = at[kind], at[kind] + size
            if kind == "call":
                calls = self.tool_calls[start : at[kind]]
                parts += [Reply(tool_calls=(call,)) for call in calls]
            elif size:
                parts.append(Reply(**{kind: getattr(self, kind)[start : at[kind]]}))
        return parts

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the order is of so many characters and calls."""
        found = dict.fromkeys(_RANKS, 0)
        for kind, size in self.order:
            if kind not in found or size < 0:
                return False
            found[kind] += size
        return found == sizes

    def message(self) -> dict[str, Any]:
        """The assistant message in OpenAI form, as clients will send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message

    def stored(self) -> dict[str, Any]:
        """The message as it is stored: with its order, if that is to be told."""
        message = self.message()
        if self.order:
            message[ORDER] = [list(run) for run in self.order]
        return message


def _runs(deltas: Iterable[Delta]) -> list[Run]:
    """What deltas add, each kind as far as it goes on."""
    runs: list[Run] = []
    calls = 0
    for delta in deltas:
        added = [("reasoning", len(delta.reasoning)), ("text", len(delta.text))]
        if delta.call_index is not None and delta.call_index >= calls:
            added.append(("call", 1))
            calls += 1
        for kind, size in added:
            if size and runs and runs[-1][0] == kind:
                runs[-1] = (kind, runs[-1][1] + size)
            elif size:
                runs.append((kind, size))
    return runs


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`reasoning_tokens` are among the completion's, `cached_tokens` among the prompt's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Milliseconds from the arrival of the request."""

    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0
