"""`POST /v1/completions`: prompts that no chat template goes around."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.routing import BaseRoute, Route

from gateway.api.exchange import Exchange
from gateway.api.inference import Inference
from gateway.api.limits import Admission
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.pipeline import Finished, Listener, serve_each
from gateway.records import Principal, TurnRequest
from gateway.telemetry.tracing import Context
from gateway.tokens.tokenizer import Tokenizer
from gateway.wire.completions_prompt import Prompt
from gateway.wire.openai_completions import (
    OpenAICompletions,
    each_prompt,
    prompts_of,
    with_prompts,
)


def routes(services: Services) -> list[BaseRoute]:
    endpoint = Completions(services, OpenAICompletions())
    return [Route("/v1/completions", endpoint, methods=["POST"])]


class Completions(Inference):
    """Serves `POST /v1/completions`: each prompt is a turn of its own, with `n` choices."""

    async def _request(self, exchange: Exchange, principal: Principal) -> TurnRequest:
        """Turn texts into ids, or ids into texts, off the event loop.

        Raises InvalidRequest for an id that the model does not have.
        """
        request = await super()._request(exchange, principal)
        tokenizer, prompts = self.services.tokenizer, prompts_of(request)
        both = await asyncio.to_thread(lambda: [_both(tokenizer, one) for one in prompts])
        return with_prompts(request, [ids for ids, _ in both], [text for _, text in both])

    def _turns(
        self,
        principal: Principal,
        request: TurnRequest,
        admission: Admission,
        listener: Listener | None,
        client: Context | None,
    ) -> Coroutine[Any, Any, Finished]:
        turn = super()._turns

        def serve(one: TurnRequest, heard: Listener | None) -> Coroutine[Any, Any, Finished]:
            return turn(principal, one, admission, heard, client)

        return serve_each(each_prompt(request), serve, listener)


def _both(tokenizer: Tokenizer, prompt: Prompt) -> tuple[Sequence[int], str]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, special=True), prompt
    if (wrong := tokenizer.first_invalid(prompt)) is not None:
        raise InvalidRequest(
            f"Invalid token id in 'prompt': {wrong} is outside the model's vocabulary.",
            param="prompt",
            code="invalid_value",
        )
    return prompt, tokenizer.decode(prompt)
