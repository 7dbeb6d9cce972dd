"""Sampled ids to what a client sees: incrementally while they are sampled, and whole after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.records import Delta, Reply, ToolCall
from gateway.tokens.detokenizer import detokenizer
from gateway.tokens.reply_format import ReplyFormat, split
from gateway.tokens.splitter import Splitter
from gateway.tokens.stops import StopCutter, cut_at
from gateway.tokens.tokenizer import Tokenizer


class ReplyParser:
    """Reads one reply as it is sampled.

    Stop tokens and other special tokens are not shown, half a character and what may become a
    stop string or a tag wait. `mint` gives each tool call its id, once. Cutting the ids into
    chunks in any other way gives the same reply.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_token_ids: Iterable[int],
        stop_strings: Sequence[str] = (),
        form: ReplyFormat,
        mint: Callable[[], str],
    ) -> None:
        self._stop_ids = frozenset(stop_token_ids)
        self._hidden = tokenizer.hidden_ids(form.wrappers, form.marks)
        self._detokenizer = detokenizer(tokenizer)
        self._cutter = StopCutter(stop_strings)
        self._splitter = Splitter(form, mint)
        #: What is decoded is what is shown.
        self._plain = form.plain and not stop_strings
        self._ended = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._cutter.matched

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids given to tool calls so far, in order."""
        return tuple(id_ for id_, _, _ in self._calls)

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """What newly sampled ids add to the reply."""
        if self._ended or not self._stop_ids.isdisjoint(ids) or not self._hidden.isdisjoint(ids):
            ids = self._shown(ids)
        text = self._detokenizer.feed(ids)
        return self._said(text) if self._plain else self._pass_on(text)

    def finish(self) -> list[Delta]:
        """What was held back, now that nothing follows."""
        if self._plain:
            return self._said(self._detokenizer.flush())
        text = self._cutter.feed(self._detokenizer.flush()) + self._cutter.flush()
        return self._seen(self._splitter.feed(text, final=True))

    def reply(self) -> Reply:
        """Everything shown so far, put together."""
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                ToolCall(id=id_, name=name, arguments="".join(arguments))
                for id_, name, arguments in self._calls
            ),
        )

    def _shown(self, ids: Sequence[int]) -> list[int]:
        """Those before the end that are not hidden."""
        shown: list[int] = []
        for id_ in ids:
            if self._ended or id_ in self._stop_ids:
                self._ended = True
                break
            if id_ not in self._hidden:
                shown.append(id_)
        return shown

    def _said(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._text.append(text)
        return [Delta(text=text)]

    def _pass_on(self, text: str) -> list[Delta]:
        return self._seen(self._splitter.feed(self._cutter.feed(text))) if text else []

    def _seen(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            if delta.call_index is None:
                self._text.append(delta.text)
                self._reasoning.append(delta.reasoning)
            elif delta.call_id is not None:
                self._calls.append((delta.call_id, delta.call_name or "", []))
            else:
                self._calls[delta.call_index][2].append(delta.arguments)
        return deltas


def parse_reply(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    stop_token_ids: Iterable[int],
    stop_strings: Sequence[str] = (),
    form: ReplyFormat,
    call_ids: Sequence[str],
    mint: Callable[[], str],
) -> Reply:
    """The whole reply from all its ids at once, by other code than the incremental parser.

    `call_ids` are those that the incremental parser has given out; `mint` serves calls beyond.
    """
    stops = frozenset(stop_token_ids)
    for end, id_ in enumerate(ids):
        if id_ in stops:
            ids = ids[:end]
            break
    text = tokenizer.decode(ids, skip=tokenizer.hidden_ids(form.wrappers, form.marks))
    if stop_strings and (found := cut_at(text, stop_strings)):
        text = text[: found[0]]
    if form.plain:
        return Reply(text=text)
    parts = split(text, form)
    given = iter(call_ids)
    return Reply(
        text=parts.text,
        reasoning=parts.reasoning,
        tool_calls=tuple(
            ToolCall(id=next(given, "") or mint(), name=name, arguments=arguments)
            for name, arguments in parts.calls
        ),
    )
