"""The dialect of `POST /v1/completions`: a prompt as it stands, without a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from gateway.config import ServerSettings
from gateway.records import TurnRequest
from gateway.wire.clients import caller
from gateway.wire.completions_encoder import CompletionsEncoder
from gateway.wire.json_body import JsonBody, invalid, missing, unsupported
from gateway.wire.openai_errors import OpenAIErrors
from gateway.wire.request_fields import StreamOptions, check_model, choices_of, streamed
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
    """Requests and replies of the old completions API: one prompt a request, text or token ids."""

    name = "openai_completions"
    params = {"messages": "prompt"}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self._json = JsonBody(CompletionBody)

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        """A request that still lacks `prompt_ids`: `prompt_of` says what they are made of."""
        asked: CompletionBody = self._json.decode(body)
        who = caller(headers, limits.max_id_bytes)
        check_model(asked.model)
        choices = choices_of(asked.n)
        if asked.best_of not in (None, choices):
            raise unsupported("best_of", "'best_of' other than 'n' is not supported.")
        if asked.echo:
            raise unsupported("echo", "'echo' is not supported.")
        if asked.suffix:
            raise unsupported("suffix", "'suffix' is not supported.")
        stream, include_usage = streamed(asked.stream, asked.stream_options)
        limit = _REPLY_TOKENS if asked.max_tokens is None else asked.max_tokens
        return TurnRequest(
            dialect=self.name,
            model=asked.model,
            messages=(),
            sampling=asked.sampling(limit, "max_tokens"),
            stream=stream,
            include_usage=include_usage,
            choices=choices,
            top_logprobs=between("logprobs", asked.logprobs, 0, _MOST_LOGPROBS),
            stop_token_ids=asked.stop_ids,
            user=asked.user,
            echo={"prompt": _prompt(asked.prompt)},
            **who.fields,
        )

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> CompletionsEncoder:
        return CompletionsEncoder(request, response_id, created, model)


def prompt_of(request: TurnRequest) -> str | Sequence[int]:
    """The prompt of a request, as text or as token ids."""
    prompt: str | Sequence[int] = request.echo["prompt"]
    return prompt


def with_prompt(request: TurnRequest, ids: Sequence[int], text: str) -> TurnRequest:
    """A request with the ids of its prompt.

    Its one message has a part that no chat has: a prompt's text is never taken for a chat's.
    """
    message = {"role": "user", "content": [{"type": "prompt", "text": text}]}
    return replace(request, messages=(message,), prompt_ids=tuple(ids))


def _prompt(prompt: str | list[Any] | None) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None:
        raise missing("prompt")
    if not prompt:
        raise invalid("prompt", "expected at least one token", "empty_array")
    if isinstance(prompt, str):
        return prompt
    if all(type(id_) is int for id_ in prompt):
        return tuple(prompt)
    if all(isinstance(one, str | list) for one in prompt):
        raise unsupported("prompt", "Several prompts in one request are not supported.")
    raise invalid("prompt", "expected a string or an array of token ids", "invalid_type")
