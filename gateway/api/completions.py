"""`POST /v1/completions`: prompts that no chat template goes around."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from gateway.api.inference import Inference
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.records import Principal, TurnRequest
from gateway.tokens.tokenizer import Tokenizer
from gateway.wire.openai_completions import OpenAICompletions, prompt_of, with_prompt


def routes(services: Services) -> list[BaseRoute]:
    endpoint = Completions(services, OpenAICompletions())
    return [Route("/v1/completions", endpoint, methods=["POST"])]


class Completions(Inference):
    """Serves `POST /v1/completions`."""

    async def _complete(self, principal: Principal, request: TurnRequest) -> TurnRequest:  # noqa: ARG002
        """Turn text into ids, or ids into text, off the event loop.

        Raises InvalidRequest for an id that the model does not have.
        """
        tokenizer = self.services.tokenizer
        ids, text = await asyncio.to_thread(_both, tokenizer, prompt_of(request))
        return with_prompt(request, ids, text)


def _both(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> tuple[Sequence[int], str]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, special=True), prompt
    if (wrong := tokenizer.first_invalid(prompt)) is not None:
        raise InvalidRequest(
            f"Invalid token id in 'prompt': {wrong} is outside the model's vocabulary.",
            param="prompt",
            code="invalid_value",
        )
    return prompt, tokenizer.decode(prompt)
