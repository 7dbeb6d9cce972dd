"""Takes out of records what is not to be stored.

A turn in which anything was found, in the history that its prompt shows as much as in its reply,
keeps none of its ids: they would spell it. It is judged by the words that are left, and never
trained on. Where redaction is on, hashes of texts are keyed (`key`), so that who reads the
database cannot try out what stood in a gap.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b, sha256
from threading import Lock
from typing import Any, Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.config import RedactionSettings
from gateway.records import (
    SAME_TOOLS,
    FeedbackRecord,
    Message,
    NextState,
    Sampling,
    TurnRecord,
    TurnRequest,
    is_media,
)
from gateway.redaction.detectors import plugged_in
from gateway.redaction.patterns import BUILT_IN, named
from gateway.telemetry import get_logger

log = get_logger(__name__)

T = TypeVar("T")

#: Why a turn in which something was found is not trained on.
REDACTED = "redacted"
#: Stands for the whole of a text that a detector failed on.
_UNCHECKED = "unchecked"
#: Values of messages and tools that are never words: a choice of a few.
_NO_WORDS = frozenset({"role", "type"})
_MOST_REMEMBERED = 8192
#: Numbers that may name somebody; smaller ones only count.
_LONG = 1_000_000
#: Of what a response repeats: minted, counted and packed here.
_OWN_FIELDS = ("previous_response_id", "usage", "top")
#: What JSON inside a text writes for another sign. The letter of `\\n` would join what follows it.
_ESCAPED = re.compile(r"\\(?:[bfnrt]|u([0-9A-Fa-f]{4}))")


class _Finder(Protocol):
    def find(self, text: str) -> Iterable[tuple[int, int]]: ...


class Redactor:
    """Its methods may take as long as the detectors do: they run in a thread."""

    def __init__(self, finders: Mapping[str, _Finder], key: bytes) -> None:
        self.key = key
        self._finders = finders
        self._cleaned: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def configured(cls, settings: RedactionSettings | None) -> Self | None:
        """None where nothing is to be redacted. Raises ConfigError."""
        if settings is None:
            return None
        finders: dict[str, _Finder] = {name: BUILT_IN[name] for name in settings.patterns}
        finders |= {pattern.label: pattern for pattern in named(settings.expressions)}
        for name in settings.detectors:
            finders[name] = plugged_in(name, settings.settings.get(name, {}))
        return cls(finders, sha256(settings.hash_key.get_secret_value().encode()).digest())

    async def of_turn(self, request: TurnRequest, turn: TurnRecord) -> TurnRecord:
        """A turn as it may be stored; the very same where nothing was found."""
        return await asyncio.to_thread(self._of_turn, request, turn)

    async def of_next_states(self, states: Sequence[NextState]) -> list[NextState]:
        """What followed, as it may be stored."""
        if not states:
            return []
        return await asyncio.to_thread(lambda: [self._of_next_state(state) for state in states])

    async def of_feedback(self, records: Sequence[FeedbackRecord]) -> list[FeedbackRecord]:
        """What somebody said, as it may be stored."""
        return await asyncio.to_thread(
            lambda: [replace(record, text=self.text(record.text)) for record in records]
        )

    def text(self, text: str) -> str:
        """A text with `[redacted:NAME]` in place of what each finder found."""
        # Histories come again with every turn: what was looked at is remembered by its digest.
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            if digest in self._cleaned:
                self._cleaned.move_to_end(digest)
                known = self._cleaned[digest]
                return text if known is None else known
        cleaned = self._searched(text)
        with self._lock:
            self._cleaned[digest] = None if cleaned == text else cleaned
            while len(self._cleaned) > _MOST_REMEMBERED:
                self._cleaned.popitem(last=False)
        return cleaned

    def _searched(self, text: str) -> str:
        found: list[tuple[int, int, str]] = []
        plain, places = _unescaped(text)
        for name, finder in self._finders.items():
            try:
                found += [(start, end, name) for start, end in finder.find(text) if start < end]
                if plain != text:
                    found += [
                        (places[start], places[end], name)
                        for start, end in finder.find(plain)
                        if start < end
                    ]
            except Exception as error:  # noqa: BLE001 - it is another package's
                # What it would have found is not known: nothing of the text may be stored, and
                # its message may hold some of it.
                log.error("detector_failed", detector=name, error=type(error).__name__)  # noqa: TRY400
                return _gap(_UNCHECKED)
        return _replaced(text, found)

    def _of_turn(self, request: TurnRequest, turn: TurnRecord) -> TurnRecord:
        messages = self._messages(turn.messages)
        if turn.response_fields is not None:
            # No prompt shows them: the turn's ids are whole all the same.
            turn = replace(turn, response_fields=self._fields(turn.response_fields))
        tools = turn.tools if turn.tools == SAME_TOOLS else self._value(turn.tools)
        reply = self._value(turn.reply)
        sampling = self._sampling(turn.sampling)
        # The prompt shows what was said before as well, and its ids spell it.
        shown = (messages, tools, reply, sampling) != (
            turn.messages,
            turn.tools,
            turn.reply,
            turn.sampling,
        ) or (
            self._messages(request.messages) != request.messages
            or self._value(request.tools) != request.tools
        )
        if not shown:
            return turn
        return replace(
            turn,
            messages=messages,
            tools=tools,
            reply=reply,
            sampling=sampling,
            shared_len=0,
            prompt_ids=(),
            sampled_ids=(),
            logprobs=(),
            kept=None,
            response_fields=_without_ids(turn.response_fields),
            trainable=False,
            untrainable_reason=REDACTED,
            redacted=True,
        )

    def _fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value if name in _OWN_FIELDS else self._value(value, frozenset())
            for name, value in fields.items()
        }

    def _of_next_state(self, state: NextState) -> NextState:
        return replace(state, messages=self._messages(state.messages))

    def _messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(self._value(message) for message in messages)

    def _sampling(self, sampling: Sampling) -> Sampling:
        if not sampling.stop and sampling.grammar is None:
            return sampling
        return replace(
            sampling, stop=self._value(sampling.stop), grammar=self._value(sampling.grammar)
        )

    def _value(self, value: T, passed: AbstractSet[str] = _NO_WORDS) -> T:
        """The same value with every text in it searched; the very same where nothing was found.

        Texts under the keys `passed` are passed over.
        """
        cleaned: Any = value
        if isinstance(value, str):
            cleaned = self.text(value)
        elif isinstance(value, int | float) and abs(value) >= _LONG:
            number = str(value)
            cleaned = value if (found := self.text(number)) == number else found
        elif isinstance(value, Mapping):
            cleaned = value if is_media(value) else self._mapping(value, passed)
        elif isinstance(value, list | tuple):
            items = [self._value(item, passed) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                cleaned = type(value)(items)
        return cleaned  # type: ignore[no-any-return]

    def _mapping(self, value: Mapping[str, Any], passed: AbstractSet[str]) -> Mapping[str, Any]:
        cleaned: dict[str, Any] = {}
        same = True
        for key, item in value.items():
            new_key = self.text(key)
            if key in passed and isinstance(item, str):
                new = item
            elif key == "arguments" and isinstance(item, str):
                new = self._arguments(item)
            else:
                new = self._value(item, passed)
            same &= new_key is key and new is item
            cleaned[new_key] = new
        return value if same else cleaned

    def _arguments(self, text: str) -> str:
        """The arguments of a call stay JSON, whatever is taken out of them."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return self.text(text)
        cleaned = self._value(value, frozenset())
        return text if cleaned is value else msgspec.json.encode(cleaned).decode()


def _without_ids(fields: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a response repeats, without the tokens that were likely in it."""
    return fields and {name: value for name, value in fields.items() if name != "top"}


def _unescaped(text: str) -> tuple[str, Sequence[int]]:
    """The text with signs for their escapes, and where each of them, and the end, is in the text.

    A space stands for those that nobody sees.
    """
    if "\\" not in text:
        return text, ()
    parts: list[str] = []
    places = array("Q")
    at = 0
    for match in _ESCAPED.finditer(text):
        parts += [text[at : match.start()], _sign(match[1])]
        places.extend(range(at, match.start() + 1))
        at = match.end()
    places.extend(range(at, len(text) + 1))
    return "".join([*parts, text[at:]]), places


def _sign(digits: str | None) -> str:
    sign = chr(int(digits, 16)) if digits else " "
    return sign if sign.isprintable() else " "


def _replaced(text: str, found: Iterable[tuple[int, int, str]]) -> str:
    """The text with a gap for each run of places that overlap, named after its first."""
    parts: list[str] = []
    at = 0
    for start, end, name in sorted(found, key=lambda one: (one[0], -one[1])):
        if start >= at:
            parts += [text[at:start], _gap(name)]
        at = max(at, end)
    return "".join([*parts, text[at:]]) if parts else text


def _gap(name: str) -> str:
    return f"[redacted:{name}]"
