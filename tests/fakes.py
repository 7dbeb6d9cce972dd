"""A server that speaks the part of SGLang's protocol that the gateway uses.

Its model is a table: the distribution of the next token follows from the last three tokens and
the adapter. Sampling and log-probabilities are exact, so it passes the same contract tests as the
real engine, and a test may say which ids to reply with.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from aiohttp import web
from tokenizers import Tokenizer

#: Ids to reply with, given the decoded body of the request; None leaves it to the model.
Script = Callable[[dict[str, Any]], Sequence[int] | None]


@dataclass(kw_only=True)
class Faults:
    """What goes wrong, until the test says otherwise."""

    #: Answer `/generate` with this status and message.
    refuse: tuple[int, str] | None = None
    #: The same, once for each entry, before `refuse` is looked at.
    refuse_once: deque[tuple[int, str]] = field(default_factory=deque)
    #: Accept and never say anything.
    hang: bool = False
    #: Drop the connection of a stream after so many tokens.
    die_after: int | None = None
    #: Leave out the last log-probability of each event.
    lose_logprob: bool = False
    #: Report every log-probability as null, as the server writes what is not finite.
    null_logprobs: bool = False
    #: Seconds that loading an adapter takes.
    load_delay_s: float = 0.0
    #: Refuse to load any adapter, with this message.
    refuse_load: str | None = None
    #: Refuse to replace whole weights, with this message.
    refuse_update: str | None = None
    #: Seconds that replacing whole weights takes.
    update_delay_s: float = 0.0
    #: Say that whole weights were replaced, and go on with those that there were.
    lie: bool = False
    #: The process dies as it is told to replace whole weights, or as it has.
    die_at_update: Literal["before", "after"] | None = None
    #: So many times whole weights arrive wrong in a place where no probe looks.
    rotten_updates: int = 0
    #: It has no checksum of its weights to tell.
    no_checksum: bool = False


@dataclass(kw_only=True)
class _Running:
    adapter: str | None
    #: Of each token the ids that it was sampled from, and its log-probability among them.
    kept: list[tuple[list[int], float]] = field(default_factory=list)
    script: Sequence[int] | None = None
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Turnstile(asyncio.Semaphore):
    """Lets as many through as are released, in the order in which they came."""

    def __init__(self, value: int = 0) -> None:
        super().__init__(value)
        self.waiting = 0

    async def acquire(self) -> Literal[True]:
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1

    async def let(self, count: int) -> None:
        """Wait until so many wait, and let them through."""
        while self.waiting < count:
            await asyncio.sleep(0.001)
        for _ in range(count):
            self.release()


#: How many ids an image or audio clip takes in a prompt.
IDS_SHOWN = 16


class FakeSglang:
    """Start with `async with FakeSglang() as fake`; `fake.url` is where it listens.

    `requests` keeps the decoded body of every `/generate` and `headers` what came with it,
    `aborted` the ids told to stop.
    """

    def __init__(
        self,
        *,
        model_path: Path | None = None,
        vocab_size: int = 512,
        eos_id: int = 2,
        context_length: int = 2048,
        name: str = "tiny",
        chunk_tokens: int = 1,
        chunk_delay_s: float = 0.0,
        cumulative: bool = False,
        max_queued: int | None = None,
        mask_tokens: int | None = 4096,
    ) -> None:
        self.model_path = str(model_path or "/nowhere")
        self.vocab_size, self.eos_id, self.context_length = vocab_size, eos_id, context_length
        self.tokenizer: Tokenizer | None = None
        if model_path is not None:
            config = json.loads((model_path / "config.json").read_text())
            self.vocab_size = config["vocab_size"]
            self.eos_id = config["eos_token_id"]
            self.context_length = config["max_position_embeddings"]
            self.tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
        self.name = name
        self.chunk_tokens, self.chunk_delay_s = chunk_tokens, chunk_delay_s
        #: Where there is one, each chunk of a stream takes a place before it is sent.
        self.turnstile: Turnstile | None = None
        self.cumulative, self.max_queued = cumulative, max_queued
        #: Ids that it can tell a token was sampled from; None where it knows of no such thing.
        self.mask_tokens = mask_tokens
        self.script: Script | None = None
        self.replies: deque[Sequence[int]] = deque()
        self.faults = Faults()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborted: list[str] = []
        #: Whether it was started with `--enable-lora`.
        self.takes_adapters = True
        self.adapters: dict[str, str] = {}
        self.known_adapters: dict[str, str] = {}
        #: What requests report, what `/model_info` does, and which weights it really computes.
        self.weight_version = self.told_version = "default"
        self.weights = ""
        self._digests: dict[str, str] = {}
        #: The mode of the pause that it is in.
        self.pause: str | None = None
        self.crashed = self.rotten = False
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._running: dict[str, _Running] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        """Listen on a free port, the same one again after `stop`."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/ready", self._ready),
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/v1/loads", self._loads),
                web.post("/load_lora_adapter", self._load),
                web.post("/unload_lora_adapter", self._unload),
                web.post("/abort_request", self._abort),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/update_weights_from_disk", self._update),
                web.post("/update_weight_version", self._name_version),
                web.post("/weights_checker", self._checksum),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Refuse connections, and cut off those that are open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for running in self._running.values():
                running.abort.set()
            await runner.cleanup()

    async def restart(self) -> None:
        """A new process at the same address: adapters and weights are gone."""
        await self.stop()
        self.adapters.clear()
        self.known_adapters.clear()
        self._running.clear()
        self.weight_version = self.told_version = "default"
        self.weights, self.pause, self.crashed = "", None, False
        self._resumed.set()
        await self.start()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The model

    def logits(self, context: Sequence[int], adapter: str | None) -> np.ndarray[Any, Any]:
        """Shape [V], float64, for the token after `context`."""
        source = self.known_adapters.get(adapter, "") if adapter else ""
        key = json.dumps([list(context[-3:]), source, self._contents()])
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        return np.random.default_rng(seed).standard_normal(self.vocab_size) * 2

    def _contents(self) -> str:
        """What the weights are: equal files in two places are the same weights."""
        if self.weights not in self._digests:
            file = Path(self.weights) / "model.safetensors"
            told = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else self.weights
            self._digests[self.weights] = told
        return self._digests[self.weights]

    def logprobs(
        self, context: Sequence[int], adapter: str | None, temperature: float = 1.0
    ) -> np.ndarray[Any, Any]:
        """log_softmax(logits / temperature), shape [V]."""
        scaled = self.logits(context, adapter) / temperature
        return scaled - np.logaddexp.reduce(scaled)

    def score(self, ids: Sequence[int], start: int, adapter: str | None = None) -> list[float]:
        """What `Engine.score` must answer."""
        return [float(self.logprobs(ids[:i], adapter)[ids[i]]) for i in range(start, len(ids))]

    def _sampled(
        self, body: dict[str, Any], before: Sequence[tuple[int, float]] = ()
    ) -> list[tuple[int, float]]:
        """Every token of the reply with its log-probability, before stop strings are applied.

        `before` are those that were sampled when the weights were replaced.
        """
        params, prompt = body["sampling_params"], body["input_ids"]
        adapter = body.get("lora_path")
        temperature = params.get("temperature", 1.0)
        greedy = temperature < 1e-6 or params.get("top_k", -1) == 1
        limit = params.get("max_new_tokens", 128)
        room = self.context_length - len(prompt) - 2
        limit = room if limit is None else min(limit, room)
        stops = {self.eos_id, *(params.get("stop_token_ids") or ())}
        bias = params.get("logit_bias") or {}
        running = self._running[body["rid"]]
        if not before:
            running.script = self.replies.popleft() if self.replies else None
            if running.script is None and self.script is not None:
                running.script = self.script(body)
        script = running.script
        seed = f"{params.get('sampling_seed')}" if "sampling_seed" in params else body["rid"]
        rng = np.random.default_rng(list(hashlib.blake2b(seed.encode(), digest_size=16).digest()))
        context, sampled = [*prompt, *(token for token, _ in before)], list(before)
        while len(sampled) < (limit if script is None else min(limit, len(script))):
            values = self.logprobs(context, adapter, 1.0 if greedy else temperature)
            if bias:
                values = values.copy()
                for token, value in bias.items():
                    values[int(token)] += value
                values -= np.logaddexp.reduce(values)
            if script is not None:
                token = script[len(sampled)]
            elif greedy:
                token = int(values.argmax())
            else:
                token = int(rng.choice(self.vocab_size, p=_truncated(values, params)))
            if body.get("return_sampling_mask"):
                running.kept[len(sampled) :] = [_among(token, values, params)]
            sampled.append((token, float(values[token])))
            context.append(token)
            if token in stops:
                break
        return sampled

    def text(self, ids: Sequence[int]) -> str:
        if self.tokenizer is not None:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return "".join(f"<{token}>" for token in ids)

    def _finish(
        self, tokens: list[tuple[int, float]], params: dict[str, Any]
    ) -> tuple[list[tuple[int, float]], dict[str, Any]]:
        """Cut at the first stop string, and say why the reply ends."""
        stops = params.get("stop") or []
        for count in range(1, len(tokens) + 1) if stops else ():
            text = self.text([token for token, _ in tokens[:count]])
            for stop in stops:
                if stop in text:
                    return tokens[:count], {"type": "stop", "matched": stop}
        last = tokens[-1][0] if tokens else None
        if last in {self.eos_id, *(params.get("stop_token_ids") or ())}:
            return tokens, {"type": "stop", "matched": last}
        return tokens, {"type": "length", "length": len(tokens)}

    # The protocol

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.faults.refuse_once or self.faults.refuse:
            once = self.faults.refuse_once
            status, message = once.popleft() if once else self.faults.refuse or (500, "")
            return web.json_response({"error": {"message": message}}, status=status)
        if self.faults.hang:
            await asyncio.sleep(3600)
        stream = body.get("stream", False)
        if unknown := set(body["sampling_params"]) - _SAMPLING_PARAMETERS:
            return web.json_response({"error": f"unknown field `{min(unknown)}`"}, status=400)
        if (problem := self._problem(body)) is not None:
            return await self._failure(request, problem, stream=stream)
        if any(not 0 <= token < self.vocab_size for token in body["input_ids"]):
            return await self._crash(request)
        if self.max_queued is not None and len(self._running) > self.max_queued:
            return await self._overload(request, body)
        rid = body["rid"]
        self._running[rid] = _Running(adapter=body.get("lora_path"))
        try:
            await self._resumed.wait()
            if stream:
                return await self._stream(request, body)
            return web.json_response(self._scored(body))
        finally:
            if (running := self._running.pop(rid, None)) is not None:
                running.done.set()

    def _problem(self, body: dict[str, Any]) -> str | None:
        """What the server refuses a request for, in its words."""
        params, length = body["sampling_params"], len(body["input_ids"])
        wanted = params.get("max_new_tokens") or 0
        adapter = body.get("lora_path")
        if not length:
            return "input_ids cannot be empty."
        if length > self.context_length - 6:
            return (
                f"The input ({length} tokens) is longer than the model's context length "
                f"({self.context_length} tokens)."
            )
        if length + wanted > self.context_length:
            return (
                "Requested token count exceeds the model's maximum context length of "
                f"{self.context_length} tokens."
            )
        if body.get("return_sampling_mask") and not (
            1 < params.get("top_k", -1) <= (self.mask_tokens or 0)
        ):
            return "return_sampling_mask requires top_k=1 for greedy sampling or finite top_k"
        if params.get("temperature", 1.0) < 0:
            return "temperature must be a non-negative finite number"
        if adapter is not None and adapter not in self.known_adapters:
            return f"Got LoRA adapter that has never been loaded: {adapter}"
        if body["rid"] in self._running:
            return f"Duplicate request ID detected: {body['rid']}"
        if adapter is not None:
            # A name that was unloaded comes back by itself, from where it was.
            self.adapters[adapter] = self.known_adapters[adapter]
        return None

    async def _failure(
        self, request: web.Request, message: str, *, stream: bool, code: int = 400
    ) -> web.StreamResponse:
        if not stream:
            return web.json_response({"error": {"message": message}}, status=code)
        failure = {"message": message, "code": code, "type": "invalid_request_error"}
        return await self._events(request, [{"error": failure}])

    async def _overload(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        message = "The request queue is full."
        if not body.get("stream"):
            return web.json_response({"detail": message}, status=503)
        reason = {"type": "abort", "status_code": 503, "message": message}
        event = {"output_ids": [], "meta_info": {"id": body["rid"], "finish_reason": reason}}
        return await self._events(request, [event])

    async def _events(
        self, request: web.Request, events: list[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(_event(event))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens, reason = self._finish(self._sampled(body), body["sampling_params"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        running = self._running[body["rid"]]
        interval = body["sampling_params"].get("stream_interval") or 1
        spans: list[dict[str, Any]] = []
        weights, end = self.weights, 0
        while True:
            start = end
            if self.chunk_delay_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(running.abort.wait(), self.chunk_delay_s)
            if self.turnstile is not None:
                await _either(self.turnstile.acquire(), running.abort.wait())
            await self._resumed.wait()
            if weights != self.weights:
                # It was put back in line, and is computed anew from here on.
                weights = self.weights
                tokens, reason = self._finish(
                    self._sampled(body, tokens[:start]), body["sampling_params"]
                )
            # The first token comes at once, then so many at a time.
            step = interval if start else 1
            end = min(start + max(step, self.chunk_tokens), len(tokens))
            if spans and spans[-1]["version"] == self.weight_version:
                spans[-1]["end"] = end
            else:
                spans.append({"version": self.weight_version, "start": start, "end": end})
            if self.faults.die_after is not None and end > self.faults.die_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            ending = end >= len(tokens)
            if running.abort.is_set() and not ending:
                reason, ending = {"type": "abort", "message": "Aborted"}, True
            shown = tokens[:end] if self.cumulative else tokens[start:end]
            await response.write(
                _event(self._told(body, shown, end, reason if ending else None, spans))
            )
            if ending:
                break
        await response.write(b"data: [DONE]\n\n")
        return response

    def _told(
        self,
        body: dict[str, Any],
        shown: list[tuple[int, float]],
        count: int,
        reason: dict[str, Any] | None,
        spans: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """One event of a stream."""
        entries: list[tuple[float | None, int, None]] = [
            (None if self.faults.null_logprobs else value, token, None) for token, value in shown
        ]
        meta = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]) + self._unfolded(body),
            "completion_tokens": count,
            "cached_tokens": 0,
            "weight_version": self.weight_version,
            "input_token_logprobs": [],
            "output_token_logprobs": entries[:-1] if self.faults.lose_logprob else entries,
        }
        if reason is not None:
            meta["weight_versions"] = spans
        if body.get("return_sampling_mask"):
            places = range(count - len(shown), count)
            kept = [self._running[body["rid"]].kept[at] for at in places]
            meta["output_token_sampling_mask"] = [ids for ids, _ in kept]
            meta["output_token_sampling_logprobs"] = [value for _, value in kept]
        if count_top := body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [
                [(value, token, None) for value, token in self._likeliest(count_top, place)]
                for place in range(count - len(shown), count)
            ]
        ids = [token for token, _ in shown]
        return {"text": self.text(ids), "output_ids": ids, "meta_info": meta}

    @staticmethod
    def _unfolded(body: dict[str, Any]) -> int:
        """Ids that take the place of one mark each, as the real server puts them in."""
        shown = [*body.get("image_data", ()), *body.get("audio_data", ())]
        return (IDS_SHOWN - 1) * len(shown)

    @staticmethod
    def _likeliest(count: int, place: int) -> list[tuple[float, int]]:
        """Not what the model thinks: ids that tell their place, so that a shift is seen."""
        return [(-0.5 - rank, (place + rank) % 256) for rank in range(count)]

    def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request that samples nothing: log-probabilities of the prompt."""
        ids, start = body["input_ids"], body.get("logprob_start_len", -1)
        entries: list[tuple[float | None, int, None]] = []
        if body.get("return_logprob") and start >= 0:
            values: list[Any] = self.score(ids, start + 1, body.get("lora_path"))
            if self.faults.null_logprobs:
                values = [None] * len(values)
            # As the real server has it: the last id of the vocabulary is named 0.
            named = [token if token < self.vocab_size - 1 else 0 for token in ids[start:]]
            entries = _entries(named, [None, *values])
        others: dict[str, Any] = {}
        for asked, told in (
            ("top_logprobs_num", "input_top_logprobs"),
            ("token_ids_logprob", "input_token_ids_logprobs"),
        ):
            if wanted := body.get(asked):
                others[told] = self._alternatives(ids, start + 1, body.get("lora_path"), wanted)
        return {
            "text": "",
            "output_ids": [],
            "meta_info": {
                "id": body["rid"],
                "finish_reason": {"type": "length", "length": 0},
                "completion_tokens": 0,
                "input_token_logprobs": entries,
                "output_token_logprobs": [],
                **others,
            },
        }

    def _alternatives(
        self, ids: Sequence[int], start: int, adapter: str | None, wanted: int | list[int]
    ) -> list[list[tuple[float, int, None]] | None]:
        """The likeliest tokens, or the ones asked for, at each place from `start`."""
        places: list[list[tuple[float, int, None]] | None] = [None]
        for at in range(start, len(ids)):
            values = self.logprobs(ids[:at], adapter)
            chosen = np.argsort(-values)[:wanted] if isinstance(wanted, int) else wanted
            places.append([(float(values[token]), int(token), None) for token in chosen])
        return places

    async def _crash(self, request: web.Request) -> web.StreamResponse:
        """An id outside the vocabulary kills the whole server."""
        self.crashed = True
        assert request.transport is not None
        request.transport.abort()
        self._stopping = _task(self.stop())
        return web.Response(status=500)

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.model_path,
                "served_model_name": self.name,
                "weight_version": self.told_version,
            }
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        known = {} if self.mask_tokens is None else {"sampling_mask_max_tokens": self.mask_tokens}
        return web.json_response({"tp_size": 1, "speculative_algorithm": None, **known})

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.pause is None else 503)

    async def _health(self, _: web.Request) -> web.Response:
        """It samples a token, so while it is paused there is no answer for a long time."""
        await asyncio.wait_for(self._resumed.wait(), 20)
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        base = {"id": self.name, "root": self.name, "parent": None}
        cards = [{**base, "max_model_len": self.context_length}]
        cards += [
            {"id": name, "root": path, "parent": self.name, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _loads(self, _: web.Request) -> web.Response:
        load = {
            "num_running_reqs": len(self._running),
            "num_waiting_reqs": 0,
            "max_total_num_tokens": 8192,
            "lora": {"slots_used": 0, "slots_total": 8} if self.takes_adapters else None,
        }
        return web.json_response({"loads": [load]})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        await asyncio.sleep(self.faults.load_delay_s)
        if self.faults.refuse_load is not None:
            return self._lora(self.faults.refuse_load)
        if name in self.adapters:
            return self._lora(f"Failed to load LoRA adapter {name} because it is already loaded")
        if not (Path(path) / "adapter_config.json").is_file():
            return self._lora(f"Repo id must use alphanumeric chars: '{path}'.")
        self.adapters[name] = self.known_adapters[name] = path
        return self._lora(None)

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            return self._lora(f"LoRA with name {name} does not exist.")
        users = [running.done for running in self._running.values() if running.adapter == name]
        for done in users:
            await done.wait()
        self.adapters.pop(name, None)
        return self._lora(None)

    def _lora(self, problem: str | None) -> web.Response:
        return web.json_response(
            {
                "success": problem is None,
                "error_message": problem or "",
                "loaded_adapters": self.adapters,
            },
            status=200 if problem is None else 400,
        )

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        for rid, running in self._running.items():
            if body.get("abort_all") or rid == body.get("rid"):
                running.abort.set()
        self.aborted.append(body.get("rid"))
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        self.pause = (await request.json()).get("mode", "abort")
        self._resumed.clear()
        if self.pause == "abort":
            for running in self._running.values():
                running.abort.set()
        return web.json_response({"status": "ok"})

    async def _continue(self, _: web.Request) -> web.Response:
        self.pause = None
        self._resumed.set()
        return web.json_response({"status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.faults.die_at_update == "before":
            return await self._die(request)
        await asyncio.sleep(self.faults.update_delay_s)
        if self.faults.refuse_update is not None:
            return _updated(self.faults.refuse_update)
        if not (Path(body["model_path"]) / "config.json").exists():
            return _updated("Failed to get weights iterator")
        if not self.faults.lie:
            self.weights = body["model_path"]
        self.rotten = self.faults.rotten_updates > 0
        self.faults.rotten_updates -= self.rotten
        self.weight_version = body["weight_version"]
        if self.faults.die_at_update == "after":
            return await self._die(request)
        if self.pause == "in_place" and self._running and body.get("flush_cache", True):
            return _updated("Weights were updated, but the cache was not flushed")
        self.told_version = self.weight_version
        return _updated(None)

    async def _die(self, request: web.Request) -> web.Response:
        self.faults.die_at_update = None
        assert request.transport is not None
        request.transport.abort()
        self._stopping = _task(self.stop())
        return web.Response(status=500)

    async def _name_version(self, request: web.Request) -> web.Response:
        self.weight_version = self.told_version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def _checksum(self, _: web.Request) -> web.Response:
        if self.faults.no_checksum:
            return web.json_response({"success": False, "message": "unsupported"}, status=400)
        held = f"{self.weights}{' but for one bit' if self.rotten else ''}"
        digest = hashlib.blake2b(held.encode(), digest_size=8).hexdigest()
        return web.json_response({"success": True, "per_engine_checksum": digest})


def _updated(problem: str | None) -> web.Response:
    return web.json_response(
        {"success": problem is None, "message": problem or "Succeeded"},
        status=200 if problem is None else 400,
    )


_SAMPLING_PARAMETERS = frozenset(
    {
        "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k",
        "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens",
        "n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos",
        "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
        "stream_interval", "logit_bias", "sampling_seed", "custom_params",
    }
)  # fmt: skip


def _truncated(logprobs: np.ndarray[Any, Any], params: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The probabilities sampled from: top-k, top-p and min-p applied, normalised."""
    probs = np.exp(logprobs)
    order = np.argsort(-probs)
    ranked = probs[order]
    keep = np.cumsum(ranked) - ranked <= params.get("top_p", 1.0)
    keep &= ranked >= ranked[0] * params.get("min_p", 0.0)
    if params.get("top_k", -1) > 0:
        keep[params["top_k"] :] = False
    kept = np.zeros_like(probs)
    kept[order[keep]] = ranked[keep]
    total: np.ndarray[Any, Any] = kept / kept.sum()
    return total


def _among(
    token: int, logprobs: np.ndarray[Any, Any], params: dict[str, Any]
) -> tuple[list[int], float]:
    """The ids that a token was sampled from, and its log-probability among them.

    One that a test has put there is among them, too.
    """
    ids = sorted({token, *map(int, np.flatnonzero(_truncated(logprobs, params)))})
    return ids, float(logprobs[token] - np.logaddexp.reduce(logprobs[ids]))


def _entries(
    ids: Sequence[int], values: Sequence[float | None]
) -> list[tuple[float | None, int, None]]:
    return [(value, token, None) for token, value in zip(ids, values, strict=True)]


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


async def _either(*works: Coroutine[Any, Any, Any]) -> None:
    """Return as soon as one has ended, without the others."""
    tasks = [_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _task(coroutine: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


@asynccontextmanager
async def running(*servers: FakeSglang) -> AsyncIterator[tuple[FakeSglang, ...]]:
    """Several fakes at once."""
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.stop()
