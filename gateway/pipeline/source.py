"""Where the pieces of one reply come from, and the source of those that have token ids."""

from __future__ import annotations

import secrets
from typing import Protocol, Self

from gateway.engine.pool import Stream
from gateway.pipeline.events import Piece
from gateway.pipeline.prompt import Prompt
from gateway.records import Finish, Reply, Sampling
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.tokenizer import Tokenizer

#: Enough of the prompt's end to see an opening `<think>`.
_TAIL_IDS = 16


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

    async def start(self) -> None:
        """Wait for the engine's first word. Raises EngineError."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> tuple[Piece, Finish | None]:
        """The next piece, the last one with how the reply ended. Raises EngineError."""
        ...

    def reply(self, sampled_ids: list[int]) -> Reply:
        """The whole reply, once it has ended."""
        ...

    async def aclose(self) -> None: ...


class TokenSource:
    """Sampled ids, parsed as they come and parsed again from all of them at the end."""

    def __init__(
        self,
        stream: Stream,
        tokenizer: Tokenizer,
        *,
        form: ReplyFormat,
        sampling: Sampling,
        choice: int,
        call_prefix: str,
    ) -> None:
        self._stream = stream
        self._tokenizer = tokenizer
        self._form = form
        self._sampling = sampling
        self._choice = choice
        self._call_prefix = call_prefix
        self._parser = ReplyParser(
            tokenizer,
            stop_token_ids=tokenizer.facts.stop_token_ids,
            stop_strings=sampling.stop,
            form=form,
            mint=self._mint,
        )

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
        return self._parser.stopped_by

    async def start(self) -> None:
        await self._stream.start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Piece, Finish | None]:
        chunk = await anext(self._stream)
        deltas = self._parser.feed(chunk.ids)
        if chunk.finish is not None:
            deltas += self._parser.finish()
        piece = Piece(
            choice=self._choice,
            deltas=tuple(deltas),
            ids=chunk.ids,
            logprobs=chunk.logprobs,
            top=chunk.top,
        )
        return piece, chunk.finish

    def reply(self, sampled_ids: list[int]) -> Reply:
        return parse_reply(
            self._tokenizer,
            sampled_ids,
            stop_token_ids=self._tokenizer.facts.stop_token_ids,
            stop_strings=self._sampling.stop,
            form=self._form,
            call_ids=self._parser.call_ids,
            mint=self._mint,
        )

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _mint(self) -> str:
        """A tool-call id, unique for ever: clients echo it, and it then finds the parent."""
        return f"{self._call_prefix}{secrets.token_hex(12)}"


def reply_format(tokenizer: Tokenizer, prompt: Prompt, *, tools: bool) -> ReplyFormat:
    """How the model will write its reply to a prompt; `tools` whether it may call some."""
    return ReplyFormat.of(
        tokenizer.chat_template,
        prompt_end=tokenizer.decode(prompt.ids[-_TAIL_IDS:]),
        tools=tools,
    )


def call_id() -> str:
    """A tool-call id, unique for ever: clients echo it, and it then finds the parent."""
    return f"call_{secrets.token_hex(12)}"
