"""The LLM judge against an endpoint that listens: votes, failures, limits, and what it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from gateway.errors import JudgeError, JudgeUnavailable
from gateway.records import FinishReason, Judgement
from judge import prompts
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from judge.llm import LlmJudge
from judge.verdicts import Evidence
from tests.fixtures_engine import free_port
from tests.scripted_judge import ScriptedJudge, check_word, grading

EVIDENCE = Evidence(
    request=({"role": "user", "content": "Where is Canberra?"},),
    reply={"role": "assistant", "content": "In Australia.", "reasoning_content": "Oceania?"},
    next_state=({"role": "user", "content": "And Vienna?"},),
    feedback=(),
    finish_reason=FinishReason.STOP,
)


async def judged(
    server: ScriptedJudge, evidence: Evidence = EVIDENCE, **values: Any
) -> Judgement | None:
    config = LlmConfig(base_url=server.url, model="m", **{"retries": 0, **values})
    endpoint = Endpoint(config)
    try:
        return await LlmJudge(endpoint, config).judge(evidence)
    finally:
        await endpoint.close()


def each(*scores: object) -> Callable[[dict[str, Any]], str | int]:
    """The scores in turn; a text is said as it is, an int above 100 is a status."""
    left = cycle(scores)

    def script(body: dict[str, Any]) -> str | int:
        said = next(left)
        if isinstance(said, str) or (isinstance(said, int) and said > 100):
            return said
        return grading(said)(body)

    return script


async def test_the_majority_of_three_votes_is_the_score_and_all_are_kept() -> None:
    async with ScriptedJudge(each(1, -1, 1), together=3) as server:
        judgement = await judged(server)
    assert judgement is not None
    assert (judgement.judge, judgement.score, judgement.rule) == ("llm:m", 1.0, None)
    assert judgement.confidence == pytest.approx(2 / 3)
    assert judgement.reason == "2 of 3 votes"
    assert sorted(vote["score"] for vote in judgement.votes) == [-1, 1, 1]
    assert all(json.loads(vote["raw"])["why"] == "because" for vote in judgement.votes)
    assert server.most_running == 3
    request = server.requests[0]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0.6, 1024)
    schema = request["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["check"]["enum"] == [check_word(request)]
    assert server.headers[0]["x-turn-type"] == "side"


async def test_the_limit_of_an_answer_has_the_endpoints_name() -> None:
    async with ScriptedJudge(grading(1)) as server:
        await judged(server, votes=1, limit_field="max_completion_tokens", max_tokens=99)
    assert "max_tokens" not in server.requests[0]
    assert server.requests[0]["max_completion_tokens"] == 99


@pytest.mark.parametrize(
    ("said", "score", "rule"),
    [
        ((1, "hm", "hm"), 1.0, None),
        ((1, -1, "hm"), 0.0, None),
        ((1, -1, 0), 0.0, None),
        ((500, -1, 503), -1.0, None),
        (("hm", "\\boxed{1}", '{"score": 1}'), None, "unparsed"),
    ],
)
async def test_ties_are_0_and_what_cannot_be_read_does_not_count(
    said: tuple[object, ...], score: float | None, rule: str | None
) -> None:
    async with ScriptedJudge(each(*said)) as server:
        judgement = await judged(server)
    assert judgement is not None
    assert (judgement.score, judgement.rule) == (score, rule)
    assert len(judgement.votes) == 3


@pytest.mark.parametrize(
    ("status", "raised"),
    [(500, JudgeUnavailable), (429, JudgeUnavailable), (401, JudgeUnavailable), (400, JudgeError)],
)
async def test_an_endpoint_that_refuses(status: int, raised: type[Exception]) -> None:
    async with ScriptedJudge(lambda _: status) as server:
        with pytest.raises(JudgeError, match=f"status {status}") as caught:
            await judged(server)
    assert type(caught.value) is raised


async def test_an_endpoint_that_is_away_or_hangs() -> None:
    server = ScriptedJudge(grading(1))
    server.port = free_port()
    with pytest.raises(JudgeUnavailable, match="cannot be reached"):
        await judged(server)
    async with ScriptedJudge(grading(1)) as hanging:
        hanging.hang = True
        with pytest.raises(JudgeUnavailable, match="in time"):
            await judged(hanging, timeout_s=0.2)


async def test_a_failure_that_passes_is_tried_again() -> None:
    async with ScriptedJudge(each(503, 1)) as server:
        judgement = await judged(server, votes=1, retries=1)
    assert judgement is not None
    assert judgement.score == 1
    assert len(server.requests) == 2


async def test_an_endpoint_without_structured_output_is_asked_plainly() -> None:
    def script(body: dict[str, Any]) -> str:
        return f"{check_word(body)}\nScore: -1"

    async with ScriptedJudge(script) as server:
        server.refuses_schema = True
        config = LlmConfig(base_url=server.url, model="m", votes=1, retries=0)
        endpoint = Endpoint(config)
        judge = LlmJudge(endpoint, config)
        for asked in (2, 3):
            judgement = await judge.judge(EVIDENCE)
            assert judgement is not None
            assert judgement.score == -1
            assert len(server.requests) == asked
        await endpoint.close()
        with pytest.raises(JudgeError, match="status 400"):
            await judged(server, structured="always")


async def test_a_question_that_was_refused_late_is_asked_plainly_too() -> None:
    question = prompts.grade([])
    refused = asyncio.Event()
    async with ScriptedJudge(lambda _: "Score: 1") as server:
        server.refuses_schema = True

        async def hold(body: dict[str, Any]) -> None:
            if body is server.requests[0]:
                await refused.wait()

        server.before = hold
        endpoint = Endpoint(LlmConfig(base_url=server.url, model="m", retries=0))
        slow = asyncio.create_task(endpoint.ask(question))
        while not server.requests:
            await asyncio.sleep(0.001)
        assert (await endpoint.ask(question)).text == "Score: 1"
        # By now it is known that there is no structured output here.
        refused.set()
        assert (await slow).text == "Score: 1"
        await endpoint.close()


async def test_praise_of_a_reply_that_was_cut_does_not_count() -> None:
    cut = replace(EVIDENCE, finish_reason=FinishReason.LENGTH)
    async with ScriptedJudge(grading(1)) as server:
        judgement = await judged(server, cut)
    assert judgement is not None
    assert (judgement.score, judgement.rule) == (None, "truncated")
    async with ScriptedJudge(grading(-1)) as server:
        judgement = await judged(server, cut)
    assert judgement is not None
    assert judgement.score == -1


async def test_a_turn_that_nothing_followed_costs_nothing() -> None:
    async with ScriptedJudge(grading(1)) as server:
        assert await judged(server, replace(EVIDENCE, next_state=())) is None
    assert server.requests == []


async def test_a_spent_budget_leaves_turns_unscored() -> None:
    async with ScriptedJudge(grading(1)) as server:
        # Three votes of 110 tokens each.
        config = LlmConfig(base_url=server.url, model="m", tokens_per_day=330)
        endpoint = Endpoint(config)
        judge = LlmJudge(endpoint, config)
        first, second = await judge.judge(EVIDENCE), await judge.judge(EVIDENCE)
        await endpoint.close()
    assert first is not None
    assert second is not None
    assert (first.score, second.score, second.rule) == (1.0, None, "budget_spent")
    assert len(server.requests) == 3


async def test_answers_waited_for_at_once_are_bounded() -> None:
    async with ScriptedJudge(grading(1), together=2) as server:
        await judged(server, votes=8, max_concurrency=2)
    assert server.most_running == 2


async def test_a_key_from_the_environment_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses")
    async with ScriptedJudge(grading(1)) as server:
        await judged(server, votes=1)
        await judged(server, votes=1, api_key="sk-own")
    sent = [headers["authorization"] for headers in server.headers]
    assert sent == ["Bearer none", "Bearer sk-own"]


async def test_it_sees_the_whole_turn_and_reasoning_where_asked() -> None:
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    evidence = replace(
        EVIDENCE,
        reply={**EVIDENCE.reply, "tool_calls": [call]},
        next_state=(
            {"role": "tool", "content": "result one"},
            {"role": "tool", "content": [{"type": "text", "text": "result two"}]},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "media": {"kind": "image", "bytes": 3}},
                    {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
                    {"type": "text", "text": "hm"},
                ],
            },
        ),
    )
    for shown in (False, True):
        async with ScriptedJudge(grading(0)) as server:
            await judged(server, evidence, show_reasoning=shown, guidance="Brevity counts.")
        system, user = (message["content"] for message in server.requests[0]["messages"])
        for part in ("Where is Canberra?", "In Australia.", '(calls the tool look) {"at": 1}',
                     "result one", "result two", "hm", "[image]", "[audio]"):  # fmt: skip
            assert user.count(part) == 1
        assert ("Oceania?" in user) is shown
        assert "Brevity counts." in system


async def test_long_messages_are_cut_in_the_middle_and_none_is_left_out() -> None:
    many = tuple({"role": "tool", "content": f"start{i} {'x' * 900} end{i}"} for i in range(50))
    async with ScriptedJudge(grading(0)) as server:
        await judged(server, replace(EVIDENCE, next_state=many), prompt_chars=10_400)
    user = server.requests[0]["messages"][1]["content"]
    # 10,400 characters for 52 messages are 200 each.
    assert all(f"start{i} " in user and f" end{i}" in user for i in range(50))
    assert user.count("characters left out]") == 50
    assert len(user) < 10_400 + 52 * 160
