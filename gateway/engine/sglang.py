"""The client of one SGLang server: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import EngineSettings
from gateway.engine import codec
from gateway.engine.base import EngineStatus
from gateway.engine.chunks import ChunkReader, weight_version
from gateway.engine.http import EngineClient
from gateway.errors import EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import Chunk, Generation, PolicyKind, PolicyRef, new_id
from gateway.telemetry import get_logger

log = get_logger(__name__)

_ABORT_TIMEOUT_S = 5.0


class SglangEngine:
    """One server, one HTTP session for life. Implements `gateway.engine.base.Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._client = EngineClient(
            settings,
            lambda status, body: codec.refusal(status, codec.words(body), settings.name),
        )
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
        client = self._client
        reader, splitter = ChunkReader(request.policy, self.name), codec.EventSplitter()
        settled, ended = True, False
        try:
            async with client.post("/generate", body, self._settings.idle_timeout_s) as response:
                settled = False
                while part := await client.part(response):
                    for payload in splitter.feed(part):
                        chunk = reader.read(codec.decode_event(payload, self.name))
                        if chunk is None:
                            continue
                        settled = ended = chunk.finish is not None
                        yield chunk
                        if settled:
                            await client.drain(response)
                            return
                raise reader.ended()
        except EngineRejected:
            settled = True
            raise
        except asyncio.CancelledError:
            # Also where the server has read the request and not said anything yet.
            settled = ended
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
        async with self._client.post("/generate", body, self._settings.idle_timeout_s) as response:
            reply = await self._client.read(response)
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
        await self._client.close()

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
        return self._object(await self._client.get(path))

    async def _control(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        body = msgspec.json.encode(payload)
        async with self._client.post(path, body, self._settings.control_timeout_s) as response:
            return self._object(await self._client.read(response))

    def _object(self, reply: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(reply or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise EngineUnavailable(
                f"the reply cannot be read: {error}", engine=self.name
            ) from None

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
