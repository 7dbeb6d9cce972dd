"""The dialect of `POST /v1/completions`: prompts as they stand, without a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import asdict, replace

from gateway.config import ServerSettings
from gateway.records import TurnRequest
from gateway.wire.clients import caller
from gateway.wire.completions_encoder import CompletionsEncoder
from gateway.wire.completions_prompt import Prompt, checked_prompts
from gateway.wire.json_body import JsonBody, invalid, unsupported
from gateway.wire.openai_errors import OpenAIErrors
from gateway.wire.request_fields import (
    MOST_CHOICES,
    StreamOptions,
    check_model,
    choices_of,
    with_usage,
)
from gateway.wire.sampling_fields import SamplingFields, between

_MOST_LOGPROBS = 5
#: The original's, where the client leaves it open.
_REPLY_TOKENS = 16


class CompletionBody(SamplingFields, kw_only=True):
    """The fields that mean something here; all others are ignored."""

    model: str
    prompt: str | list[Any] | None = None
    suffix: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class OpenAICompletions(OpenAIErrors):
    """Requests and replies of the old completions API: prompts of text or token ids."""

    name = "openai_completions"
    params = {"messages": "prompt"}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self._json = JsonBody(CompletionBody)

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        """A request that still lacks its ids: `prompts_of` says what they are made of.

        Its choices are those of all prompts; `each_prompt` takes it apart.
        """
        asked: CompletionBody = self._json.decode(body)
        who = caller(headers, limits.max_id_bytes)
        check_model(asked.model)
        choices = 1 if asked.n is None else choices_of(asked.n)
        _check_supported(asked, choices)
        prompts = checked_prompts(asked.prompt)
        if choices * len(prompts) > MOST_CHOICES:
            raise invalid(
                "prompt",
                f"at most {MOST_CHOICES} choices are allowed, and {len(prompts)} prompts with "
                f"{choices} each are {choices * len(prompts)}",
                "array_above_max_length",
            )
        options = asked.stream_options
        include_usage = False if options is None else with_usage(asked.stream, options)
        limit = _REPLY_TOKENS if asked.max_tokens is None else asked.max_tokens
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=(),
            sampling=asked.sampling(limit, "max_tokens"),
            stream=bool(asked.stream),
            include_usage=include_usage,
            choices=choices * len(prompts),
            top_logprobs=between("logprobs", asked.logprobs, 0, _MOST_LOGPROBS),
            stop_token_ids=asked.stop_ids,
            user=asked.user,
            echo={"prompts": prompts, "echo": bool(asked.echo)},
            **asdict(who),
        )

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> CompletionsEncoder:
        return CompletionsEncoder(request, response_id, created, model)


def prompts_of(request: TurnRequest) -> tuple[Prompt, ...]:
    """The prompts of a request, each as text or as token ids."""
    prompts: tuple[Prompt, ...] = request.echo["prompts"]
    return prompts


def with_prompts(
    request: TurnRequest, ids: Sequence[Sequence[int]], texts: Sequence[str]
) -> TurnRequest:
    """A request with the ids of its prompts, and what they say."""
    return replace(request, echo={**request.echo, "ids": tuple(ids), "texts": tuple(texts)})


def each_prompt(request: TurnRequest) -> list[TurnRequest]:
    """One request a prompt, of a request with ids; a seed counts on, as it does by choice.

    Its one message has a part that no chat has: a prompt's text is never taken for a chat's.
    """
    ids, texts = request.echo["ids"], request.echo["texts"]
    choices = request.choices // len(ids)
    found = []
    for index, (own, text) in enumerate(zip(ids, texts, strict=True)):
        message = {"role": "user", "content": [{"type": "prompt", "text": text}]}
        one = replace(request, messages=(message,), prompt_ids=tuple(own), choices=choices)
        found.append(_later(one, index) if index else one)
    return found


def _later(one: TurnRequest, index: int) -> TurnRequest:
    """What is another prompt's of the fields that a request has once.

    By the key of the request its prompts would be attempts at the same turn, were they equal.
    """
    key = one.idempotency_key
    one = replace(one, sampling=one.sampling.of_choice(index * one.choices))
    return one if key is None else replace(one, idempotency_key=f"{key}#{index}")


def _check_supported(asked: CompletionBody, choices: int) -> None:
    """Raises InvalidRequest for what no engine here does."""
    if asked.best_of not in (None, choices):
        raise unsupported(
            "best_of",
            "'best_of' other than 'n' is not supported: every reply that is sampled is returned.",
        )
    if asked.echo and asked.logprobs is not None:
        raise unsupported(
            "echo",
            "'echo' together with 'logprobs' is not supported: the log-probabilities of a prompt "
            "are not computed. Leave out one of them.",
        )
    if asked.suffix:
        raise unsupported(
            "suffix", "'suffix' is not supported: this model does not insert text before another."
        )
