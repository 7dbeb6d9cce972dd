"""What real clients of the Messages API sent, and how it finds its parent again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest
from gateway.records import Delta, FinishReason, Reply, ToolCall, TurnRequest, Usage
from gateway.resolve import chain, prefixes, seed
from gateway.wire.anthropic_encoder import MessageEncoder
from gateway.wire.anthropic_messages import AnthropicMessages
from tests.unit.anthropic_client import events, message_of

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "anthropic_transcripts.jsonl")
    .read_text()
    .splitlines()
]
START = seed(UUID(int=1), "m")
USAGE = Usage(prompt_tokens=3, completion_tokens=2)


def parsed(request: dict[str, Any]) -> TurnRequest:
    body = json.dumps(request["body"]).encode()
    return AnthropicMessages().parse(body, request["headers"], ServerSettings())


def recorded_reply(told: dict[str, Any]) -> Reply:
    """What the recorder answered, as the reply that we would have sampled."""
    message = told["message"] if "message" in told else message_of(told["events"])
    blocks = message["content"]
    return Reply(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tool_calls=tuple(
            ToolCall(
                id=block["id"],
                name=block["name"],
                arguments=json.dumps(block["input"], indent=1, sort_keys=True),
            )
            for block in blocks
            if block["type"] == "tool_use"
        ),
    )


def follows(first: TurnRequest, reply: Reply, second: TurnRequest) -> bool:
    """Whether the second request holds the first one and the reply to it."""
    stored = chain([*first.messages, reply.message()], START)[-1]
    return stored in {prefix.hash for prefix in prefixes(second.messages, START)}


#: How many requests of each recording continue the reply before them: all that are no retry, no
#: title call and no request that the recorder refused.
FOLLOWERS = {
    "claude-fork": 1,
    "claude-resume": 1,
    "claude-retry503": 2,
    "claude-two-tools": 2,
    "anthropic-py-chat": 2,
    "anthropic-py-tools": 3,
    "anthropic-py-tools-toolrunner-nothread": 1,
}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["name"])
def test_recorded_requests_parse_and_find_their_parents(recorded: dict[str, Any]) -> None:
    answered: list[tuple[TurnRequest, Reply]] = []
    followers = 0
    for request in recorded["requests"]:
        if "thread" in request["body"]:
            with pytest.raises(InvalidRequest):
                parsed(request)
            continue
        turn = parsed(request)
        assert turn.client.startswith(("claude-cli/", "Anthropic/Python"))
        followers += sum(follows(*before, turn) for before in answered[-1:])
        if "failed" not in request["reply"]:
            answered.append((turn, recorded_reply(request["reply"])))
    assert followers == FOLLOWERS.get(recorded["name"], 0)


def test_claude_code_is_known_by_its_session() -> None:
    named = next(each for each in RECORDED if each["name"] == "claude-two-tools")
    turns = [parsed(request) for request in named["requests"]]
    assert {turn.session_name for turn in turns} == {"97ac313d-a3bd-44d1-ae99-69f2abf0f5dc"}
    assert {turn.user for turn in turns} == {"d" * 64}
    title, *main = turns
    assert (title.tools, title.sampling.grammar is not None) == ((), True)
    assert all(len(turn.tools) == 2 and turn.sampling.grammar is None for turn in main)
    assert [message["role"] for message in main[0].messages] == ["system", "user", "system"]
    headers = {
        key: value
        for key, value in named["requests"][0]["headers"].items()
        if not key.startswith("x-claude-code")
    }
    unnamed = parsed({**named["requests"][0], "headers": headers})
    assert unnamed.session_name == title.session_name


REPLIES = [
    [Delta(text="Hello "), Delta(text="you. ")],
    [Delta(reasoning="Hm."), Delta(text="Yes.")],
    [
        Delta(text="Wait."),
        Delta(call_index=0, call_id="toolu_1", call_name="f", arguments='{"b": 1.0, "a": "é"}'),
        Delta(call_index=1, call_id="toolu_2", call_name="g", arguments="{}"),
    ],
    [Delta(call_index=0, call_id="toolu_1", call_name="f", arguments="[1]"), Delta(text="Done.")],
    [],
]


@pytest.mark.parametrize("deltas", REPLIES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_is_sent_back_finds_its_parent(deltas: list[Delta], stream: bool) -> None:
    calls = [delta for delta in deltas if delta.call_index is not None]
    reply = Reply(
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(
            ToolCall(id=d.call_id or "", name=d.call_name or "", arguments=d.arguments)
            for d in calls
        ),
    )
    writer = MessageEncoder(UUID(int=9), "m")
    frames = [writer.start(3), *(writer.delta(0, delta) for delta in deltas)]
    frames += [writer.finish(0, FinishReason.STOP), writer.end(USAGE)]
    whole = MessageEncoder(UUID(int=9), "m").whole([reply], [FinishReason.STOP], USAGE)
    message = message_of(events(b"".join(frames))) if stream else json.loads(whole)

    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    told = [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [*reversed(results), {"type": "text", "text": "thanks"}]},
    ]
    first = parsed({"headers": {}, "body": asked})
    second = parsed({"headers": {}, "body": {**asked, "messages": [*asked["messages"], *told]}})
    assert follows(first, reply, second)
    assert [m.get("tool_call_id") for m in second.messages[2:]] == [
        *(call.id for call in reply.tool_calls),
        None,
    ]
    assert not follows(first, Reply(text="Something else."), second)


def test_a_moved_cache_mark_changes_nothing() -> None:
    two_tools = next(each for each in RECORDED if each["name"] == "claude-two-tools")
    main = [parsed(request) for request in two_tools["requests"][1:]]
    for first, second in pairwise(main):
        assert second.messages[: len(first.messages)] == first.messages
