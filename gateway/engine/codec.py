"""What SGLang 0.5 sends and takes at `/generate`, as records.

The server flag `--incremental-streaming-output` makes ids and log-probabilities of a stream
deltas; without it they are cumulative. `completion_tokens` is cumulative either way, which tells
the two apart in every event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.engine.ids_json import ids_json
from gateway.errors import EngineError, EngineOverloaded, EngineRejected, EngineUnavailable
from gateway.records import Generation, Ranked, Sampling

#: (log-probability, token id, text); the server writes null for a value that is not finite.
TokenLogprob = tuple[float | None, int, Any]


class Reason(msgspec.Struct):
    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None


class Span(msgspec.Struct):
    version: str
    start: int
    end: int


class Meta(msgspec.Struct):
    finish_reason: Reason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    output_token_logprobs: list[TokenLogprob] | None = None
    output_top_logprobs: list[list[TokenLogprob] | None] | None = None
    output_token_sampling_mask: list[list[int]] | None = None
    output_token_sampling_logprobs: list[float | None] | None = None
    input_token_logprobs: list[TokenLogprob] | None = None
    input_top_logprobs: list[list[TokenLogprob] | None] | None = None
    input_token_ids_logprobs: list[list[TokenLogprob] | None] | None = None
    weight_versions: list[Span] | None = None


class Failure(msgspec.Struct):
    message: str = ""
    code: int | None = None


class Event(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: Failure | None = None


#: An event, or a msgspec.DecodeError to be told of as `unreadable`.
decode = msgspec.json.Decoder(Event).decode
encode = msgspec.json.Encoder().encode

#: Keys of `Sampling.grammar`, of which a request has one.
_GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})


def decode_event(data: bytes | bytearray | memoryview, engine: str) -> Event:
    """One event of a stream, or a whole reply.

    Raises EngineUnavailable where it is none of SGLang's.
    """
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise unreadable(error, engine) from None


def unreadable(error: msgspec.DecodeError, engine: str) -> EngineUnavailable:
    """What an engine says is none of SGLang's words."""
    return EngineUnavailable(f"the reply cannot be read: {error}", engine=engine)


class EventSplitter:
    """Cuts a server-sent event stream, as it arrives, into the payloads of whole events.

    SGLang writes each event as one `data:` line and an empty line; `[DONE]` is left out.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, part: bytes) -> list[bytes]:
        if not self._pending and part[:7] == b"data: {" and part.find(b"\n\n") == len(part) - 2:
            # One event and all of it, as nearly every part is.
            return [part[6:-2]]
        *whole, self._pending = (self._pending + part).split(b"\n\n")
        payloads: list[bytes] = []
        for event in whole:
            if event[:7] == b"data: {":
                payloads.append(event[6:])
            elif event != b"data: [DONE]":
                payload = event.strip().removeprefix(b"data:").strip()
                if payload and payload != b"[DONE]":
                    payloads.append(payload)
        return payloads


def generate_body(request: Generation, kept_most: int = 0) -> bytes:
    """The body of a streaming `/generate`. Raises ValueError for a grammar of unknown form.

    The ids that tokens are sampled from are asked for where they are at most `kept_most`.
    """
    params = sampling_params(request.sampling, request.stop_token_ids)
    if request.stream_interval > 1:
        params["stream_interval"] = request.stream_interval
    body: dict[str, Any] = {
        "rid": request.rid,
        "input_ids": msgspec.Raw(ids_json(request.input_ids)),
        "sampling_params": params,
        "return_logprob": True,
        "stream": True,
    }
    if request.top_logprobs:
        body["top_logprobs_num"] = request.top_logprobs
    if request.kept and request.sampling.cut_within(kept_most):
        body["return_sampling_mask"] = True
        body["sampling_logprobs_mode"] = "selected"
    if request.images:
        body["image_data"] = request.images
    if request.audio:
        body["audio_data"] = request.audio
    if (adapter := request.policy.adapter) is not None:
        body["lora_path"] = adapter
    return encode(body)


def sampling_params(sampling: Sampling, stop_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """What a client left open is sent as SGLang's neutral value: its defaults may be configured.

    `max_new_tokens` null means as many as the context leaves; left out it would be 128.
    """
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k and sampling.top_k > 0 else -1,
        "min_p": 0.0 if sampling.min_p is None else sampling.min_p,
        # Matching a stop string needs the text of special tokens, and nothing may be cut off.
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.frequency_penalty is not None:
        params["frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty is not None:
        params["presence_penalty"] = sampling.presence_penalty
    if sampling.repetition_penalty is not None:
        params["repetition_penalty"] = sampling.repetition_penalty
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if stop_token_ids:
        params["stop_token_ids"] = list(stop_token_ids)
    if sampling.grammar:
        params |= _grammar(sampling.grammar)
    return params


def _grammar(rules: Mapping[str, Any]) -> dict[str, str]:
    for kind in rules:
        if kind not in _GRAMMARS:
            raise ValueError(f"unknown kind of grammar {kind!r}")
    return {
        kind: rule if isinstance(rule, str) else encode(rule).decode()
        for kind, rule in rules.items()
    }


def logprob_values(entries: list[TokenLogprob]) -> tuple[float, ...]:
    """The values [n]; not a number where the server had none."""
    return unzipped(entries)[0]


def unzipped(entries: list[TokenLogprob]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The values [n], as `logprob_values` has them, and the ids that they are of [n]."""
    if not entries:
        return (), ()
    values, ids, _ = zip(*entries, strict=True)
    return numbers(values) if None in values else values, ids


def numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    """Values [n]; not a number where the server wrote null."""
    return tuple([math.nan if value is None else value for value in values])


def ranked(places: list[list[TokenLogprob] | None]) -> tuple[Ranked, ...]:
    """The likeliest tokens at each place, the likeliest first; those without a value left out."""
    return tuple(
        tuple(
            sorted(
                ((token, value) for value, token, _ in entries or () if value is not None),
                key=lambda pair: -pair[1],
            )
        )
        for entries in places
    )


def refusal(status: int, message: str, engine: str) -> EngineError:
    """The error for an HTTP status, of a response or inside a stream."""
    if status == 429 or (status == 503 and "queue" in message):
        return EngineOverloaded(message, engine=engine)
    if "multimodal data" in message:
        # What a client sent cannot be opened: another engine could not either.
        # The server's words hold the start of the data.
        return EngineRejected("an image or audio clip cannot be opened", engine=engine)
    if "has never been loaded" in message or status in (408, 502, 503, 504) or status >= 500:
        # A restarted engine has lost its adapters: it cannot serve this version now.
        return EngineUnavailable(message, engine=engine)
    return EngineRejected(message, engine=engine)


def words(body: bytes) -> str:
    """What an error reply says, from any of the forms that SGLang uses."""
    try:
        reply = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:500].decode(errors="replace")
    while isinstance(reply, dict):
        for key in ("error", "error_message", "message", "detail"):
            if reply.get(key):
                reply = reply[key]
                break
        else:
            break
    return str(reply)[:500]
