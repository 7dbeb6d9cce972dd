"""The client of one SGLang server: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.config import EngineSettings
from gateway.engine import codec
from gateway.engine.base import EngineStatus
from gateway.engine.chunks import ChunkReader, weight_version
from gateway.errors import EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import Chunk, Generation, PolicyKind, PolicyRef, new_id
from gateway.telemetry import get_logger

log = get_logger(__name__)

_ABORT_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 1.0
#: The server closes a connection that was idle for 5 s; one about to be closed must not be used.
_KEEPALIVE_S = 4.0


class SglangEngine:
    """One server, one HTTP session for life. Implements `gateway.engine.base.Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._aborts: set[asyncio.Task[None]] = set()
        self._vocab: tuple[str, int | None] | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Sample a continuation, see `Engine.generate`.

        The server includes the stop token, and every token whose text a stop string touches.
        At temperature 0 it reports the log-probabilities of temperature 1. A request id must
        never be used again: the server aborts the id once more two seconds after a stream of
        that id ended, even one that it refused as a duplicate.
        """
        self._check_vocabulary(request.input_ids)
        try:
            body = codec.generate_body(request)
        except ValueError as error:
            raise EngineRejected(str(error), engine=self.name) from None
        reader, splitter = ChunkReader(request.policy, self.name), codec.EventSplitter()
        settled = True
        try:
            async with self._post("/generate", body, self._settings.idle_timeout_s) as response:
                settled = False
                while part := await self._part(response):
                    for payload in splitter.feed(part):
                        chunk = reader.read(codec.decode_event(payload, self.name))
                        if chunk is None:
                            continue
                        settled = chunk.finish is not None
                        yield chunk
                        if settled:
                            await self._drain(response)
                            return
                raise reader.ended()
        except EngineRejected:
            settled = True
            raise
        finally:
            if not settled:
                self._abort(request.rid)

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        """Log-probabilities [len(ids) - start] of ids[start:] at temperature 1."""
        if not 1 <= start < len(ids):
            raise EngineRejected(
                f"cannot score from {start} of {len(ids)} tokens", engine=self.name
            )
        self._check_vocabulary(ids)
        body = codec.score_body(new_id().hex, list(ids), start, policy)
        async with self._post("/generate", body, self._settings.idle_timeout_s) as response:
            reply = await self._read(response)
        event = codec.decode_event(reply, self.name)
        # The first entry stands for ids[start - 1], which the server does not score.
        entries = (event.meta_info.input_token_logprobs or [])[1:]
        values = list(codec.logprob_values(entries))
        scored = [token for _, token, _ in entries]
        # The server names the last id of the vocabulary 0 here; its score is the right one.
        if len(scored) != len(ids) - start or any(
            said not in (asked, 0) for said, asked in zip(scored, ids[start:], strict=True)
        ):
            raise EngineRejected(
                f"asked to score {len(ids) - start} tokens, the engine scored {len(scored)} "
                "or others",
                engine=self.name,
            )
        if not all(map(math.isfinite, values)):
            raise EngineRejected("a score is not finite", engine=self.name)
        return values

    async def load(self, policy: PolicyRef) -> float:
        """Bring a version in beside those that serve; milliseconds.

        A full version takes the place of the one before it: running requests are held, requeued
        and go on with the new weights.
        """
        started = time.perf_counter()
        if policy.kind is PolicyKind.LORA:
            await self._load_adapter(policy)
        elif policy.kind is PolicyKind.FULL:
            await self._load_weights(policy)
        return (time.perf_counter() - started) * 1e3

    async def _load_adapter(self, policy: PolicyRef) -> None:
        if policy.uri is None:
            raise EngineRejected(f"{policy.adapter} has no weights to load", engine=self.name)
        payload = {"lora_name": policy.adapter, "lora_path": policy.uri}
        try:
            await self._control("/load_lora_adapter", payload)
        except EngineRejected:
            # Refused as loaded already, which is what was wanted if it came from the same place.
            if (await self._adapters()).get(policy.adapter or "") != policy.uri:
                raise

    async def _load_weights(self, policy: PolicyRef) -> None:
        wanted = weight_version(policy)
        if policy.uri is None:
            raise EngineRejected(f"{wanted} has no weights to load", engine=self.name)
        if (await self._get("/model_info")).get("weight_version") == wanted:
            return
        await self._control("/pause_generation", {"mode": "retract"})
        try:
            await self._control(
                "/update_weights_from_disk",
                {"model_path": policy.uri, "weight_version": wanted, "flush_cache": True},
            )
        finally:
            await self._control("/continue_generation", {})

    async def unload(self, policy: PolicyRef) -> None:
        """Drop an adapter that no request uses; the server would wait for one that does."""
        if policy.kind is not PolicyKind.LORA:
            return
        try:
            await self._control("/unload_lora_adapter", {"lora_name": policy.adapter})
        except EngineRejected:
            if policy.adapter in await self._adapters():
                raise

    async def status(self) -> EngineStatus:
        info, models, loads = await asyncio.gather(
            self._get("/model_info"), self._get("/v1/models"), self._get("/v1/loads")
        )
        cards = models.get("data", [])
        base: dict[str, Any] = next((card for card in cards if card.get("parent") is None), {})
        ranks = loads.get("loads", [])
        path = str(info.get("model_path", ""))
        if self._vocab is None or self._vocab[0] != path:
            self._vocab = (path, await asyncio.to_thread(_vocab_size, path))
        return EngineStatus(
            ready=True,
            model=str(info.get("served_model_name", "")),
            context_length=base.get("max_model_len"),
            vocab_size=self._vocab[1],
            weight_version=info.get("weight_version"),
            adapters=frozenset(card["id"] for card in cards if card.get("parent") is not None),
            running=sum(rank.get("num_running_reqs", 0) for rank in ranks),
            queued=sum(rank.get("num_waiting_reqs", 0) for rank in ranks),
            max_total_tokens=min(
                (rank["max_total_num_tokens"] for rank in ranks if "max_total_num_tokens" in rank),
                default=None,
            ),
            supports_lora=any(rank.get("lora") for rank in ranks),
        )

    async def close(self) -> None:
        """Give aborts under way a moment, then close the session."""
        self._closed = True
        if self._aborts:
            _, late = await asyncio.wait(self._aborts, timeout=_ABORT_TIMEOUT_S)
            for task in late:
                task.cancel()
        if self._session is not None:
            await self._session.close()

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        """An id that the model lacks would crash the server, for everyone."""
        if not ids:
            raise EngineRejected("the prompt is empty", engine=self.name)
        limit = self._vocab[1] if self._vocab else None
        if min(ids) < 0 or (limit is not None and max(ids) >= limit):
            raise EngineRejected("a token id is outside the vocabulary", engine=self.name)

    async def _adapters(self) -> dict[str, str]:
        """Names and paths of the adapters that are loaded."""
        models = await self._get("/v1/models")
        return {
            card["id"]: str(card.get("root"))
            for card in models.get("data", [])
            if card.get("parent") is not None
        }

    async def _get(self, path: str) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(
            total=2 * self._settings.connect_timeout_s,
            sock_connect=self._settings.connect_timeout_s,
        )
        with self._translated():
            async with self._open().get(self._url + path, timeout=timeout) as response:
                reply = await self._read(response)
        return self._object(reply)

    async def _control(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        body = msgspec.json.encode(payload)
        async with self._post(path, body, self._settings.control_timeout_s) as response:
            return self._object(await self._read(response))

    def _object(self, reply: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(reply or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise EngineUnavailable(
                f"the reply cannot be read: {error}", engine=self.name
            ) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body of a reply. Raises what its status means."""
        with self._translated():
            body = await response.read()
        if response.status != 200:
            raise codec.refusal(response.status, codec.words(body), self.name)
        return body

    @contextlib.asynccontextmanager
    async def _post(
        self, path: str, body: bytes, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An accepted POST; `silence_s` bounds the wait for the reply and every gap within it."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._settings.connect_timeout_s, sock_read=silence_s
        )
        with self._translated():
            response = await self._open().post(self._url + path, data=body, timeout=timeout)
        try:
            if response.status != 200:
                await self._read(response)
            yield response
        finally:
            response.release()

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineUnavailable("the engine's client is closed", engine=self.name)
        if self._session is None:
            key = self._settings.api_key
            headers = {"Content-Type": "application/json"}
            if key is not None:
                headers["Authorization"] = f"Bearer {key.get_secret_value()}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                # As many streams as requests: the gateway bounds those, not the connector.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            )
        return self._session

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Network failures as errors of the one tree."""
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(f"cannot connect: {error}", engine=self.name) from error
        except TimeoutError as error:
            raise EngineTimeout(f"no answer in time: {error}", engine=self.name) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"cannot be reached: {error}", engine=self.name) from error

    async def _part(self, response: aiohttp.ClientResponse) -> bytes:
        """What has arrived of a stream; empty at its end."""
        with self._translated():
            return await response.content.readany()

    async def _drain(self, response: aiohttp.ClientResponse) -> None:
        """Read the end of a finished stream, so that its connection can be used again."""
        with contextlib.suppress(EngineUnavailable, EngineTimeout, TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while await self._part(response):
                    pass

    def _abort(self, rid: str) -> None:
        """Tell the server to stop sampling, without keeping the caller waiting."""
        if self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._send_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, rid: str) -> None:
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._control("/abort_request", {"rid": rid})
        except (EngineUnavailable, EngineTimeout, EngineRejected, TimeoutError) as error:
            # The server also notices by itself that its client has gone, a little later.
            log.info("abort_failed", engine=self.name, rid=rid, error=str(error))


def _vocab_size(model_path: str) -> int | None:
    """The model's vocabulary, where its directory is on this machine."""
    try:
        size = json.loads((Path(model_path) / "config.json").read_text()).get("vocab_size")
    except (OSError, ValueError):
        return None
    return size if isinstance(size, int) else None
