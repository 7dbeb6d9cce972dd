"""An OpenAI-compatible endpoint that a judge asks: bounded in time, in number and in cost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from gateway.errors import ConfigError, JudgeError, JudgeUnavailable
from gateway.telemetry import get_logger
from judge.answer import Answer
from judge.budget import Budget
from judge.config import LlmConfig
from judge.places import Places
from judge.prompts import Question

log = get_logger(__name__)

#: What an operator has to put right, or what passes by itself: the job waits.
_TRANSIENT = frozenset({401, 403, 404, 408, 409, 425, 429})
#: What servers answer that do not know `response_format`.
_REFUSALS = frozenset({400, 415, 422, 501})


class Endpoint:
    """One model at one address. `budget` counts what it costs, `places` spares it.

    Raises ConfigError without an address and a model.
    """

    def __init__(
        self, config: LlmConfig, budget: Budget | None = None, places: Places | None = None
    ) -> None:
        if config.base_url is None or config.model is None:
            raise ConfigError("judge.llm: there is no engine to ask; set base_url and model")
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
            # What people wrote goes where the operator said, and nowhere that it is sent on to.
            http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
        )
        self.places = places or Places(config.max_concurrency)
        self._structured = config.structured != "never"

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, question: Question) -> Answer:
        """One sampled answer, retries and waiting for a place included within the time-out.

        Raises JudgeUnavailable where the endpoint cannot be reached, is slow, limits the rate or
        does not know the key or model, JudgeError where it refuses the question.
        """
        asked = False
        try:
            async with asyncio.timeout(self._config.timeout_s):
                if not await self.places.take():
                    raise JudgeUnavailable(
                        "the judge's endpoint failed and is left alone for a while",
                        retry_after_s=self.places.closed_s,
                    )
                asked = True
                answer = await self._ask(question)
        except TimeoutError:
            if not asked:
                raise JudgeUnavailable("no place free at the judge's endpoint") from None
            raise self._away("did not answer in time") from None
        finally:
            if asked:
                self.places.give_back()
        self.places.answered()
        return answer

    async def _ask(self, question: Question) -> Answer:
        structured = self._structured
        try:
            return await self._call(question, structured=structured)
        except openai.APIStatusError as error:
            if not (structured and self._may_be_plain(error)):
                raise self._failure(error) from None
        except openai.APITimeoutError:
            raise TimeoutError from None
        except openai.APIConnectionError:
            raise self._away("cannot be reached") from None
        except openai.OpenAIError as error:
            raise JudgeError(f"the judge's endpoint: {type(error).__name__}") from None
        try:
            answer = await self._call(question, structured=False)
        except openai.APIStatusError as error:
            raise self._failure(error) from None
        except openai.APITimeoutError:
            raise TimeoutError from None
        except openai.OpenAIError as error:
            raise self._away(f"failed: {type(error).__name__}") from None
        if self._structured:
            self._structured = False
            log.info("judge_endpoint_without_structured_output", model=self.model)
        return answer

    def _may_be_plain(self, error: openai.APIStatusError) -> bool:
        """Whether the same question without a schema may be accepted."""
        return self._config.structured == "auto" and error.status_code in _REFUSALS

    async def _call(self, question: Question, *, structured: bool) -> Answer:
        started = time.perf_counter()
        form: dict[str, Any] = {self._config.limit_field: self._config.max_tokens}
        if structured:
            schema = {"name": question.name, "schema": dict(question.schema), "strict": True}
            form["response_format"] = {"type": "json_schema", "json_schema": schema}
        reply: object = await self._client.chat.completions.create(
            model=self.model,
            messages=question.messages,  # type: ignore[arg-type]
            temperature=self._config.temperature,
            extra_body=self._config.extra_body or None,
            **form,
        )
        if not isinstance(reply, ChatCompletion):
            raise self._away("does not answer as OpenAI's does")
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

    def _failure(self, error: openai.APIStatusError) -> JudgeError:
        status = error.status_code
        if status in _TRANSIENT or status >= 500:
            return self._away(f"answers with status {status}", _retry_after(error))
        # It is there, and does not like this question.
        self.places.answered()
        return JudgeError(f"the judge's endpoint refuses the question with status {status}")

    def _away(self, how: str, retry_after_s: float = 0.0) -> JudgeUnavailable:
        self.places.failed(retry_after_s)
        return JudgeUnavailable(f"the judge's endpoint {how}", retry_after_s=self.places.closed_s)


def _retry_after(error: openai.APIStatusError) -> float:
    """What the server asks for, in seconds; 0 where it asks for nothing."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
