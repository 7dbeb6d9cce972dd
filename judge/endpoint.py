"""An OpenAI-compatible endpoint that a judge asks: bounded in time, in number and in cost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from gateway.errors import JudgeError, JudgeUnavailable
from gateway.telemetry import get_logger
from judge.answer import Answer
from judge.budget import Budget
from judge.config import LlmConfig
from judge.prompts import Question

log = get_logger(__name__)

#: What an operator has to put right, or what passes by itself: the job waits.
_TRANSIENT = frozenset({401, 403, 404, 408, 409, 425, 429})
#: What servers answer that do not know `response_format`.
_REFUSALS = frozenset({400, 415, 422, 501})


class Endpoint:
    """One model at one address. `budget` counts what it costs."""

    def __init__(self, config: LlmConfig, budget: Budget | None = None) -> None:
        self.model = config.model
        self.budget = budget or Budget(
            tokens_per_day=config.tokens_per_day,
            usd_per_day=config.usd_per_day,
            prompt_usd=config.prompt_usd,
            completion_usd=config.completion_usd,
        )
        self._config = config
        self._client = openai.AsyncOpenAI(
            base_url=config.base_url,
            # Never the one in the environment, which is another endpoint's.
            api_key=config.api_key.get_secret_value() if config.api_key else "none",
            max_retries=config.retries,
            timeout=config.timeout_s,
            default_headers=config.headers,
        )
        self._places = asyncio.Semaphore(config.max_concurrency)
        self._structured = config.structured != "never"

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, question: Question) -> Answer:
        """One sampled answer, retries and waiting for a place included within the time-out.

        Raises JudgeUnavailable where the endpoint cannot be reached, is slow, limits the rate or
        does not know the key or model, JudgeError where it refuses the question.
        """
        try:
            async with asyncio.timeout(self._config.timeout_s), self._places:
                return await self._ask(question)
        except TimeoutError:
            raise JudgeUnavailable("the judge's endpoint did not answer in time") from None

    async def _ask(self, question: Question) -> Answer:
        try:
            return await self._call(question, structured=self._structured)
        except openai.APIStatusError as error:
            if not self._may_be_plain(error):
                raise _failure(error) from None
        except openai.APIConnectionError:
            raise JudgeUnavailable("the judge's endpoint cannot be reached") from None
        except openai.OpenAIError as error:
            raise JudgeError(f"the judge's endpoint: {type(error).__name__}") from None
        try:
            answer = await self._call(question, structured=False)
        except openai.APIStatusError as error:
            raise _failure(error) from None
        except openai.OpenAIError as error:
            raise JudgeUnavailable(f"the judge's endpoint: {type(error).__name__}") from None
        self._structured = False
        log.info("judge_endpoint_without_structured_output", model=self.model)
        return answer

    def _may_be_plain(self, error: openai.APIStatusError) -> bool:
        """Whether the same question without a schema may be accepted."""
        auto = self._config.structured == "auto" and self._structured
        return auto and error.status_code in _REFUSALS

    async def _call(self, question: Question, *, structured: bool) -> Answer:
        started = time.perf_counter()
        form: dict[str, Any] = {}
        if structured:
            schema = {"name": question.name, "schema": dict(question.schema), "strict": True}
            form["response_format"] = {"type": "json_schema", "json_schema": schema}
        reply: object = await self._client.chat.completions.create(
            model=self.model,
            messages=question.messages,  # type: ignore[arg-type]
            temperature=self._config.temperature,
            max_tokens=self._config.max_tokens,
            extra_body=self._config.extra_body or None,
            **form,
        )
        if not isinstance(reply, ChatCompletion):
            raise JudgeUnavailable("the judge's endpoint does not answer as OpenAI's does")
        usage = reply.usage
        prompt_tokens = usage.prompt_tokens if usage else 0
        completion_tokens = usage.completion_tokens if usage else 0
        self.budget.spend(prompt_tokens, completion_tokens)
        message = reply.choices[0].message if reply.choices else None
        return Answer(
            text=(message.content if message else None) or "",
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            ms=(time.perf_counter() - started) * 1e3,
        )


def _failure(error: openai.APIStatusError) -> JudgeError:
    status = error.status_code
    if status in _TRANSIENT or status >= 500:
        return JudgeUnavailable(f"the judge's endpoint answers with status {status}")
    return JudgeError(f"the judge's endpoint refuses the question with status {status}")
