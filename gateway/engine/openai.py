"""The client of one OpenAI-compatible server: messages in, text out, no token ids."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Sequence

from gateway.config import EngineSettings
from gateway.engine import openai_codec as codec
from gateway.engine.base import EngineStatus
from gateway.engine.http import EngineClient
from gateway.records import Media, TextChunk, TextGeneration


class OpenAIEngine:
    """One server, one key, one HTTP session for life. Implements `TextEngine`."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._client = EngineClient(
            settings, functools.partial(codec.refusal, engine=settings.name)
        )

    @property
    def name(self) -> str:
        return self._settings.name

    def takes(self, media: Sequence[Media]) -> bool:
        """What the operator says of it, since such servers do not."""
        kinds, fetches = self._settings.modalities, self._settings.fetch_media
        return all(one.kind in kinds and (fetches or not one.is_remote) for one in media)

    async def generate(self, request: TextGeneration) -> AsyncGenerator[TextChunk, None]:
        """Stream a reply, see `TextEngine.generate`.

        A server that does not stream answers whole, which is one chunk. Closing early drops the
        connection, which is how such servers are told to stop.
        """
        model = self._settings.model or request.request.model
        body = codec.request_body(request, model, self._settings.limit_field)
        reader, lines = codec.TextReader(self.name), codec.EventLines()
        client, silence_s = self._client, self._settings.idle_timeout_s
        async with client.post("/chat/completions", body, silence_s) as response:
            if response.content_type == "application/json":
                deltas = reader.read(await client.read(response))
                yield TextChunk(deltas=deltas, finish=reader.finish())
                return
            while part := await client.part(response):
                for payload in lines.feed(part):
                    if payload == b"[DONE]":
                        yield TextChunk(finish=reader.finish())
                        await client.drain(response)
                        return
                    if deltas := reader.read(payload):
                        yield TextChunk(deltas=deltas)
            yield TextChunk(finish=reader.finish())

    async def status(self) -> EngineStatus:
        """Whether the server answers; one that does not list its models does."""
        await self._client.get("/models", also=(404, 405))
        return EngineStatus(ready=True, model=self._settings.model or "")

    async def close(self) -> None:
        await self._client.close()
