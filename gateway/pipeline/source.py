"""Where the pieces of one reply come from, and the source of those that have token ids."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.engine.pool import Stream
from gateway.pipeline.events import Piece
from gateway.pipeline.prompt import Prompt
from gateway.records import Chunk, Delta, Finish, Reply, Sampling
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.reasoning import reasoning_tokens
from gateway.tokens.reply_format import PLAIN, ReplyFormat
from gateway.tokens.tokenizer import Tokenizer

#: Enough of the prompt's end to see an opening `<think>`.
_TAIL_IDS = 16
_ENOUGH = Chunk()


class Source(Protocol):
    """One reply on its way. Close it in every case; closing early aborts it in the engine."""

    @property
    def started(self) -> bool: ...

    @property
    def engine(self) -> str:
        """The engine that serves it, known once it has `started`."""
        ...

    @property
    def version(self) -> int | None:
        """The version that samples, None where an engine has none."""
        ...

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the reply, if one of the client's did."""
        ...

    @property
    def watched(self) -> bool:
        """Whether pieces tell what they show; else `deltas` does, of all of them."""
        ...

    async def start(self) -> None:
        """Wait for the engine's first word. Raises EngineError."""
        ...

    async def pour(
        self, took: Callable[[Piece], bool], ready: Callable[[], Awaitable[None]]
    ) -> Finish | None:
        """Give `took` every piece as it arrives, and wait until `ready` where that says False.

        How the reply ended, None where nothing says so. Raises EngineError, and what they raise.
        """
        ...

    def reply(self, sampled_ids: list[int]) -> Reply:
        """The whole reply, once it has ended."""
        ...

    def deltas(self, sampled_ids: list[int], *, ended: bool) -> list[Delta]:
        """What was not watched, as it would have been shown."""
        ...

    def reasoning_tokens(self, sampled_ids: list[int]) -> int:
        """How many of the ids sampled so far are reasoning."""
        ...

    async def aclose(self) -> None: ...


class TokenSource:
    """Sampled ids, parsed as they come and parsed again from all of them at the end.

    Of a reply that is not `watched`, which its client sees whole, the second is enough.
    """

    def __init__(
        self,
        stream: Stream,
        tokenizer: Tokenizer,
        *,
        form: ReplyFormat,
        sampling: Sampling,
        choice: int,
        call_prefix: str,
        watched: bool,
    ) -> None:
        self._stream = stream
        self._tokenizer = tokenizer
        self._form = form
        self._sampling = sampling
        self._choice = choice
        self._call_prefix = call_prefix
        # Which stop string ended it is what the parser alone tells.
        self._parser = self._new_parser() if watched or sampling.stop else None
        self.watched = self._parser is not None
        self.start, self.aclose = stream.start, stream.aclose

    @property
    def started(self) -> bool:
        return self._stream.started

    @property
    def engine(self) -> str:
        return self._stream.engine.name

    @property
    def version(self) -> int:
        return self._stream.policy.version

    @property
    def stopped_by(self) -> str | None:
        return None if self._parser is None else self._parser.stopped_by

    async def pour(
        self, took: Callable[[Piece], bool], ready: Callable[[], Awaitable[None]]
    ) -> Finish | None:
        parser, choice = self._parser, self._choice

        def take(chunk: Chunk) -> bool:
            deltas: Sequence[Delta] = ()
            if parser is not None:
                deltas = _fed(parser, chunk.ids, ended=chunk.finish is not None)
            return took(
                Piece(
                    choice=choice,
                    deltas=tuple(deltas),
                    ids=chunk.ids,
                    logprobs=chunk.logprobs,
                    top=chunk.top,
                    kept=chunk.kept,
                )
            )

        try:
            while True:
                chunk = await self._stream.more(take)
                # An empty one came where what was given before was enough for now.
                if chunk == _ENOUGH or not take(chunk):
                    await ready()
                if chunk.finish is not None:
                    return chunk.finish
        except StopAsyncIteration:
            return None

    def reply(self, sampled_ids: list[int]) -> Reply:
        return parse_reply(
            self._tokenizer,
            sampled_ids,
            stop_token_ids=self._tokenizer.facts.stop_token_ids,
            stop_strings=self._sampling.stop,
            form=self._form,
            call_ids=() if self._parser is None else self._parser.call_ids,
            mint=self._mint,
        )

    def deltas(self, sampled_ids: list[int], *, ended: bool) -> list[Delta]:
        return _fed(self._new_parser(), sampled_ids, ended=ended)

    def reasoning_tokens(self, sampled_ids: list[int]) -> int:
        if self._form.plain:
            return 0
        return reasoning_tokens(
            self._tokenizer, sampled_ids, self._form, self._tokenizer.facts.stop_token_ids
        )

    def _new_parser(self) -> ReplyParser:
        return ReplyParser(
            self._tokenizer,
            stop_token_ids=self._tokenizer.facts.stop_token_ids,
            stop_strings=self._sampling.stop,
            form=self._form,
            mint=self._mint,
        )

    def _mint(self) -> str:
        """A tool-call id, unique for ever: clients echo it, and it then finds the parent."""
        return f"{self._call_prefix}{os.urandom(12).hex()}"


def _fed(parser: ReplyParser, ids: Sequence[int], *, ended: bool) -> list[Delta]:
    deltas = parser.feed(ids)
    return deltas + parser.finish() if ended else deltas


def reply_format(
    tokenizer: Tokenizer, prompt: Prompt, tools: Sequence[Mapping[str, Any]]
) -> ReplyFormat:
    """How the model will write its reply to a prompt; `tools` are those that it may call."""
    if not tools and tokenizer.answers_plainly:
        return PLAIN
    # Only what may have been opened there is looked for.
    end = tokenizer.decode(prompt.ids[-_TAIL_IDS:]) if tokenizer.thinks else ""
    template, form = tokenizer.chat_template, tokenizer.calls
    return ReplyFormat.of(template, prompt_end=end, tools=tools, form=form)
