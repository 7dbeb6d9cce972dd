"""A reply that is streamed: what is told of a turn, as the frames of a dialect."""

from __future__ import annotations

import time

from gateway.api.event_stream import EventStream
from gateway.api.exchange import Exchange
from gateway.api.logprobs import shown, spoken
from gateway.api.served_headers import served_headers
from gateway.api.services import Services
from gateway.errors import NextstateError
from gateway.pipeline import Ended, Finished, Piece, Started
from gateway.records import TurnRequest
from gateway.telemetry import get_logger
from gateway.wire.base import Dialect, Encoder, TokenLogprob

log = get_logger(__name__)


class StreamedReply:
    """Listens to one turn; close it in every case.

    The frames of the end are held back until `finish`, when every turn is durable.
    """

    def __init__(
        self, services: Services, dialect: Dialect, exchange: Exchange, request: TurnRequest
    ) -> None:
        self._services, self._dialect = services, dialect
        self._exchange, self._request = exchange, request
        self._stream = EventStream(exchange, services.settings.gateway.keepalive_comment_s)
        self._encoder: Encoder | None = None
        self._with_logprobs = request.top_logprobs is not None
        self._running = request.choices
        #: Goes out along with the first tokens, which are there already.
        self._opening = b""
        self._last = b""
        #: Log-probabilities of tokens whose text is still held back, by choice.
        self._unsent: list[list[TokenLogprob]] = [[] for _ in range(request.choices)]

    async def started(self, event: Started) -> None:
        if self._encoder is None:
            self._encoder = self._dialect.encoder(
                self._request, event.turn_id, int(event.created_at), self._request.model
            )
            self._opening = self._encoder.start(event.prompt_tokens)
            await self._stream.open(served_headers(event))

    def sampled(self, piece: Piece) -> bool:
        encoder, choice = self._encoder, piece.choice
        assert encoder is not None, "a turn begins with Started"
        frames, self._opening = self._opening, b""
        if self._with_logprobs:
            frames += self._with_values(encoder, piece)
        else:
            for delta in piece.deltas:
                frames += encoder.delta(choice, delta)
        return self._stream.write(frames)

    async def ready(self) -> None:
        await self._stream.flush()

    async def ended(self, event: Ended) -> None:
        assert self._encoder is not None, "a turn begins with Started"
        opening, self._opening = self._opening, b""
        frames = opening + self._encoder.finish(event.choice, event.finish_reason, event.stopped_by)
        self._running -= 1
        if self._running:
            self._stream.write(frames)
            await self._stream.flush()
        else:
            self._last = frames

    async def finish(self, event: Finished) -> None:
        """Send the end: what it tells of is durable."""
        assert self._encoder is not None, "a turn begins with Started"
        await self._stream.end(self._last + self._encoder.end(event.usage))

    async def fail(self, error: NextstateError) -> None:
        """End a stream that has begun with an event that says why."""
        log.warning("stream_broken", error=type(error).__name__, why=error.message)
        self._services.metrics.broken(self._dialect.name)
        encoder = self._encoder or self._dialect.encoder(
            self._request, self._exchange.request_id, int(time.time()), self._request.model
        )
        await self._stream.end(self._opening + encoder.error_event(error))

    def close(self) -> None:
        self._stream.close()

    def _with_values(self, encoder: Encoder, piece: Piece) -> bytes:
        choice = piece.choice
        # An engine of text has no ids, and needs no tokenizer here.
        if piece.ids:
            tokenizer = self._services.tokenizer
            self._unsent[choice] += shown(
                tokenizer, spoken(tokenizer, piece.ids), piece.logprobs, piece.top
            )
        frames = b""
        for delta in piece.deltas:
            frames += encoder.delta(choice, delta, self._unsent[choice])
            self._unsent[choice] = []
        return frames
