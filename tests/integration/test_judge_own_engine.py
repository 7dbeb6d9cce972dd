"""The policy's own engine as the endpoint of the LLM judge, by one setting."""

from __future__ import annotations

import pytest

from gateway.config import load
from judge import prompts
from judge.config import JudgeSettings
from judge.endpoint import Endpoint
from judge.transcript import Piece

pytestmark = pytest.mark.sglang


async def test_an_empty_section_asks_the_policys_engine_and_gets_the_form_that_it_asks_for(
    sglang_url: str,
) -> None:
    settings = load(
        JudgeSettings,
        engines=({"url": sglang_url},),
        judge={"llm": {"max_tokens": 500, "timeout_s": 120}},
    )
    llm = settings.judging.llm
    assert llm is not None
    assert llm.base_url == f"{sglang_url}/v1"
    question = prompts.grade([Piece("reply", "Four."), Piece("next 1 user", "Thanks!")])
    endpoint = Endpoint(llm)
    try:
        answer = await endpoint.ask(question)
    finally:
        await endpoint.close()
    # A model that was never trained keeps to a form only where the server holds it to one, and
    # may write white space for long where that lets it.
    assert answer.text.startswith("{")
    assert question.check in answer.text
    assert answer.prompt_tokens > 0
    assert 0 < answer.completion_tokens <= 500
