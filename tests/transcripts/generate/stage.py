"""Where simulated clients talk, and what is written down of it: requests, and where each belongs.

Labels come from the script of what a client did: who spoke, after which reply, in whose
conversation. They are in the form of `bench.sessions`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.transcripts.generate.wire import (
    PATHS,
    Body,
    Call,
    Entry,
    Hand,
    Replied,
    Returned,
    Said,
    body_of,
)

WORDS = (
    "harbour", "lantern", "copper", "meadow", "violet", "granite", "saddle", "walnut", "orchid",
    "thunder", "basket", "cinnamon", "velvet", "anchor", "marble", "falcon", "juniper", "ribbon",
    "candle", "pepper", "glacier", "kettle", "willow", "amber",
)  # fmt: skip


@dataclass(slots=True)
class _Label:
    session: str
    origin: str
    parent: int | None
    kind: str
    role: str
    discards: int | None
    root: bool
    followed: bool = False

    def text(self) -> str:
        kind = "unknown" if self.kind == "main" and self.root and not self.followed else self.kind
        where = f"{self.session}<{self.origin}" if self.origin else self.session
        back = f" ~{self.discards}" if self.discards else ""
        return f"{where} {self.parent or '-'} {kind} {self.role}{back}"


@dataclass(slots=True)
class Stage:
    """One case: its requests in the order of their arrival."""

    seed: str
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    labels: list[_Label] = field(default_factory=list)
    random: random.Random = field(init=False)
    _letters: int = 0
    _spoken_for: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def expect(self) -> list[str]:
        return [label.text() for label in self.labels]

    def session(self) -> str:
        """The next free letter."""
        self._letters += 1
        return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[self._letters - 1]

    def words(self, count: int = 5) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def hex(self, digits: int) -> str:
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"

    def uuid(self) -> str:
        return "-".join(self.hex(n) for n in (8, 4, 4, 4, 12))

    def send(
        self, body: Body, headers: Mapping[str, str], path: str, reply: Replied, label: _Label,
        *, left: bool = False,
    ) -> int:  # fmt: skip
        """Write a request down; its number."""
        request: dict[str, Any] = {
            "path": path,
            "headers": dict(headers),
            "body": body,
            "reply": reply.as_message(),
        }
        if left:
            request["left"] = True
        self.requests.append(json.loads(json.dumps(request)))
        self.labels.append(label)
        if label.parent is not None and label.kind == "main":
            self.labels[label.parent - 1].followed = True
        return len(self.requests)

    def call(self, prefix: str, name: str, arguments: dict[str, Any]) -> Call:
        """A tool call as models write them: spacing and escapes of their own."""
        text = json.dumps(arguments, separators=(" , ", " :  "))
        return Call(f"{prefix}{self.hex(24)}", name, arguments, text)


@dataclass(slots=True)
class Talk:
    """One conversation of one client, seen from the client."""

    stage: Stage
    hand: Hand
    headers: dict[str, str]
    system: str
    tools: tuple[str, ...] = ()
    origin: str = ""
    kind: str = "main"
    model: str = "policy"
    label: str = ""
    extra: Body = field(default_factory=dict)
    prelude: tuple[Entry, ...] = ()
    entries: list[Entry] = field(default_factory=list)
    #: The request whose reply stands last in `entries`; None at a root.
    last: int | None = None
    #: What the client puts behind the first words of a conversation.
    signature: str = ""
    opening: str = field(init=False, default="")
    _followed: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.label = self.label or self.stage.session()
        self.opening = self.signature
        self.entries = [*self.prelude, *self.entries]

    @property
    def prefix(self) -> str:
        return "toolu_" if self.hand.dialect == "messages" else "call_"

    def reply(self, text: str = "", *, calls: Sequence[Call] = (), reasoning: str = "") -> Replied:
        """What the model will say: words of its own unless given."""
        if not text and not calls:
            text = f"{self.stage.words(7).capitalize()}.\n"
        return Replied(text, tuple(calls), reasoning)

    def calls(self, *names: str) -> list[Call]:
        """Calls with arguments of their own."""
        return [
            self.stage.call(
                self.prefix,
                name,
                {"path": f"/src/{self.stage.words(1)}.py", "Zürich": number + 1.0},
            )
            for number, name in enumerate(names)
        ]

    def ask(self, text: str, reply: Replied | None = None, **how: Any) -> Replied:
        """A person says something."""
        self.entries.append(Said(text + self.opening))
        self.opening = ""
        return self.send(reply, role="user", **how)

    def results(
        self, reply: Replied | None = None, *, reverse: bool = False, **how: Any
    ) -> Replied:
        """Every call of the last reply comes back."""
        said = self.entries[-1]
        assert isinstance(said, Replied)
        calls = said.calls[:1] if self.hand.first_call_only else said.calls
        order = list(reversed(calls)) if reverse else list(calls)
        self.entries += [Returned(call, f"{call.name}: {self.stage.words(3)}") for call in order]
        return self.send(reply, role="user" if self.hand.as_text else "tool", **how)

    def send(
        self,
        reply: Replied | None = None,
        *,
        role: str,
        headers: Mapping[str, str] | None = None,
        left: bool = False,
        discards: int | None = None,
        kind: str = "",
        again: bool = False,
        **more: Any,
    ) -> Replied:
        """Send what stands there; `again` is an attempt after one, `left` one that is given up."""
        reply = reply or self.reply()
        first = self.last is not None and not self._followed.get(self.last) and not again
        label = _Label(
            session=self.label,
            origin=self.origin if self.last is None or self.origin else "",
            parent=self.last,
            kind=kind or self.kind,
            role=role if first else "-",
            discards=discards,
            root=self.last is None,
        )
        if self.last is not None:
            label.origin = ""
            self._followed[self.last] = True
        body = body_of(
            self.hand, self.system, self.entries, self.tools, model=self.model, **self.extra, **more
        )
        number = self.stage.send(
            body, {**self.headers, **(headers or {})}, PATHS[self.hand.dialect], reply, label,
            left=left,
        )  # fmt: skip
        if not left:
            self.entries.append(reply)
            self.last = number
        return reply

    def back_to(self, entries: int, last: int | None) -> None:
        """Forget what came after the first `entries`."""
        del self.entries[entries:]
        self.last = last

    def mark(self) -> tuple[int, int | None]:
        """Where the conversation stands."""
        return len(self.entries), self.last

    def copy(self, **changes: Any) -> Talk:
        """A conversation of the same client and names, with nothing said yet."""
        return replace(self, entries=[], signature="", _followed={}, **changes)
