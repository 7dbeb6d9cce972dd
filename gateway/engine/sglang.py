"""The client of one SGLang server: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import EngineSettings
from gateway.engine import codec, scoring
from gateway.engine.base import Bucket, EngineStatus, Group, Scored
from gateway.engine.channel import Channel
from gateway.engine.channels import Channels
from gateway.engine.http import EngineClient
from gateway.engine.loading import Loading
from gateway.engine.reply import Reply
from gateway.engine.whole_weights import IN_DOUBT, WholeWeights
from gateway.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import Generation, PolicyKind, PolicyRef, first_outside, new_id, text_config
from gateway.telemetry import get_logger

log = get_logger(__name__)

_ABORT_TIMEOUT_S = 5.0
#: Ids of a token that are worth storing: 1 KB.
_MOST_KEPT = 256


class SglangEngine:
    """One server: an HTTP session for life, and plain connections for what streams.

    Implements `gateway.engine.base.Engine`.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.name, self.url = settings.name, settings.url

        def refusal(status: int, body: bytes) -> EngineError:
            return codec.refusal(status, codec.words(body), settings.name)

        self._client = EngineClient(settings, refusal)
        self._channels = Channels(settings, refusal)
        self._closed = False
        self._aborts: set[asyncio.Task[None]] = set()
        self._vocab: tuple[str, int | None] | None = None
        self._kept_most: int | None = None
        self._loading = Loading(settings.name, self._post, self._get, settings.load_timeout_s)
        self._weights = WholeWeights(settings.name, self._control, self._get, self._loading)

    def generate(self, request: Generation) -> Reply:
        """Sample a continuation, see `Engine.generate`.

        The server includes the stop token, and every token whose text a stop string touches.
        At temperature 0 it reports the log-probabilities of temperature 1. A request id must
        never be used again: the server aborts the id once more two seconds after a stream of
        that id ended, even one that it refused as a duplicate.
        """
        return Reply(self, request)

    def begin(self, request: Generation) -> Awaitable[Channel]:
        """See `Server.begin`."""
        self._check_vocabulary(request.input_ids)
        try:
            body = codec.generate_body(request, self._kept_most or 0)
        except ValueError as error:
            raise EngineRejected(str(error), engine=self.name) from None
        silence_s = self._settings.idle_timeout_s
        return self._channels.post("/generate", body, silence_s, request.traceparent)

    def refused(self, error: EngineRejected) -> None:
        """See `Server.refused`."""
        if self._kept_most and "sampling_mask" in error.message:
            # It is another server than the one that was asked, and serves it without.
            self._kept_most = None
            raise EngineUnavailable(error.message, engine=self.name) from None

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        """Log-probabilities [len(ids) - start] of ids[start:] at temperature 1."""
        event = await self._scored(ids, start, policy)
        return scoring.logprobs_of(event, ids, start, self.name)

    async def likeliest(
        self, ids: Sequence[int], start: int, policy: PolicyRef, top: int
    ) -> Scored:
        """See `Engine.likeliest`."""
        event = await self._scored(ids, start, policy, top_logprobs_num=top)
        values = scoring.logprobs_of(event, ids, start, self.name)
        return scoring.likeliest_of(event, values, top, self.name)

    async def score_among(
        self, ids: Sequence[int], start: int, policy: PolicyRef, among: Sequence[Sequence[int]]
    ) -> Scored:
        """See `Engine.score_among`. In pieces: the answer grows with their square."""
        if len(among) != len(ids) - start:
            raise EngineRejected(
                f"{len(ids) - start} places, alternatives for {len(among)}", engine=self.name
            )
        self._check_vocabulary([*ids, *(id_ for row in among for id_ in row)])
        values: list[float] = []
        rows: list[tuple[float, ...]] = []
        for begin, end in scoring.windows(len(among)):
            part, wanted = ids[: start + end], among[begin:end]
            chosen = sorted({id_ for row in wanted for id_ in row})
            event = await self._scored(part, start + begin, policy, token_ids_logprob=chosen)
            values += scoring.logprobs_of(event, part, start + begin, self.name)
            rows += scoring.chosen_of(event, wanted, self.name)
        return Scored(
            logprobs=tuple(values), top_ids=tuple(map(tuple, among)), top_logprobs=tuple(rows)
        )

    async def _scored(
        self, ids: Sequence[int], start: int, policy: PolicyRef, **more: Any
    ) -> codec.Event:
        if not 1 <= start < len(ids):
            raise EngineRejected(
                f"cannot score from {start} of {len(ids)} tokens", engine=self.name
            )
        self._check_vocabulary(ids)
        body = scoring.score_body(new_id().hex, list(ids), start, policy, **more)
        async with self._client.post("/generate", body, self._settings.idle_timeout_s) as response:
            reply = await self._client.read(response)
        return codec.decode_event(reply, self.name)

    async def load(self, policy: PolicyRef) -> float:
        """Bring a version in beside those that serve; milliseconds.

        A full version takes the place of the one before it: running requests are held, requeued
        and go on with the new weights.
        """
        started = time.perf_counter()
        if policy.kind is PolicyKind.LORA:
            await self._load_adapter(policy)
        elif policy.kind is PolicyKind.FULL:
            await self._weights.load(policy)
        return (time.perf_counter() - started) * 1e3

    async def _load_adapter(self, policy: PolicyRef) -> None:
        if policy.uri is None:
            raise EngineRejected(f"{policy.adapter} has no weights to load", engine=self.name)
        payload = {"lora_name": policy.adapter, "lora_path": policy.uri}
        try:
            await self._loading.post("/load_lora_adapter", payload, policy)
        except EngineRejected:
            # Refused as loaded already, which is what was wanted if it came from the same place.
            if (await self._adapters()).get(policy.adapter or "") != policy.uri:
                raise

    async def restore(self, policy: PolicyRef) -> float:
        """See `Engine.restore`."""
        started = time.perf_counter()
        await self._weights.load(policy, anew=True)
        return (time.perf_counter() - started) * 1e3

    async def ranks(self) -> int:
        """See `Receiver.ranks`."""
        return int((await self._get("/server_info")).get("tp_size", 1))

    async def join(self, group: Group) -> None:
        """See `Receiver.join`."""
        await self._weights.join(group)

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> float:
        """See `Receiver.receive`."""
        started = time.perf_counter()
        await self._weights.receive(policy, group, buckets, send)
        return (time.perf_counter() - started) * 1e3

    async def leave(self, group: Group) -> None:
        """See `Receiver.leave`."""
        await self._weights.leave(group)

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._weights.resume()

    async def disown(self) -> None:
        """See `Engine.disown`."""
        await self._weights.name_version(IN_DOUBT)

    async def checksum(self) -> str | None:
        """See `Engine.checksum`."""
        return await self._weights.checksum()

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
        info, models, loads, paused = await asyncio.gather(
            self._get("/model_info"), self._get("/v1/models"), self._get("/v1/loads"), self.held()
        )
        cards = models.get("data", [])
        base: dict[str, Any] = next((card for card in cards if card.get("parent") is None), {})
        ranks = loads.get("loads", [])
        path = str(info.get("model_path", ""))
        if self._vocab is None or self._vocab[0] != path:
            self._vocab = (path, await asyncio.to_thread(_vocab_size, path))
            self._kept_most = None
        if self._kept_most is None:
            self._kept_most = await self._tells()
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
            paused=paused,
            kept_most=self._kept_most or 0,
        )

    async def _tells(self) -> int | None:
        """See `kept_most`; None where it is too busy to say, 0 where it has no such page."""
        try:
            return kept_most(await self._get("/server_info"))
        except EngineRejected:
            return 0
        except EngineError:
            return None

    async def held(self) -> bool:
        """Whether it is paused. Not by `/health`, which blocks for 20 s then."""
        try:
            await self._client.get("/ready")
        except EngineUnavailable:
            return True
        except EngineError:
            # A server that has no such page, or is too busy to say.
            return False
        return False

    async def close(self) -> None:
        """Give aborts under way a moment, then close the session."""
        self._closed = True
        if self._aborts:
            _, late = await asyncio.wait(self._aborts, timeout=_ABORT_TIMEOUT_S)
            for task in late:
                task.cancel()
        self._channels.close()
        await self._client.close()

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        """An id that the model lacks would crash the server, for everyone."""
        if not ids:
            raise EngineRejected("the prompt is empty", engine=self.name)
        size = self._vocab[1] if self._vocab else None
        if first_outside(ids, sys.maxsize if size is None else size) is not None:
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

    async def _control(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        return await self._post(path, payload, self._settings.control_timeout_s)

    async def _post(
        self, path: str, payload: Mapping[str, Any], silence_s: float
    ) -> dict[str, Any]:
        body = msgspec.json.encode(payload)
        async with self._client.post(path, body, silence_s) as response:
            return self._object(await self._client.read(response))

    def _object(self, reply: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(reply or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise EngineUnavailable(
                f"the reply cannot be read: {error}", engine=self.name
            ) from None

    def abort(self, rid: str) -> None:
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


def kept_most(server: Mapping[str, Any]) -> int:
    """To how many ids sampling may be cut, so that a server tells which they are; 0: to none.

    Half of what it can tell of, since ids as likely as the last one come on top, and a request
    with too many is aborted. Beyond a few hundred nobody could keep them.
    """
    if server.get("speculative_algorithm") or server.get("sampling_backend") == "ascend":
        return 0
    most = server.get("sampling_mask_max_tokens")
    return min(most // 2, _MOST_KEPT) if isinstance(most, int) else 0


def _vocab_size(model_path: str) -> int | None:
    """The model's vocabulary, where its directory is on this machine."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text())
        size = text_config(config).get("vocab_size")
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return size if isinstance(size, int) else None
