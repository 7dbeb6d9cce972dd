from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.classify import Classifier, Kind, next_state_of, promoted_by
from gateway.config import SessionSettings
from gateway.errors import ConfigError
from gateway.records import (
    Candidate,
    FinishReason,
    Message,
    Resolution,
    Sampling,
    TurnKind,
    TurnRequest,
)

USER: Message = {"role": "user", "content": "Fix the bug."}
REMARK: Message = {"role": "user", "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> 10:31"}
REPLY: Message = {"role": "assistant", "content": "Done."}
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = Sampling(grammar={"json_schema": "{}"})
NEW = Resolution(session_id=None, parent=None, rule="new")


def request(*messages: Message, **more: Any) -> TurnRequest:
    fields = {"sampling": Sampling(), **more}
    return TurnRequest(dialect="openai_chat", model="m", messages=messages or (USER,), **fields)


def after(kind: TurnKind = TurnKind.UNKNOWN, **more: Any) -> Resolution:
    parent = Candidate(
        turn_id=UUID(int=1),
        session_id=UUID(int=2),
        lineage_id=UUID(int=3),
        chain_hash=b"",
        depth=0,
        message_count=2,
        kind=kind,
        tools_hash=b"",
        finish_reason=FinishReason.STOP,
        continued=False,
        created_at=0.0,
    )
    fields = {"rule": "prefix", "new_from": 2, **more}
    return Resolution(session_id=parent.session_id, parent=parent, **fields)


def kind_of(ask: TurnRequest, resolution: Resolution = NEW, **patterns: tuple[str, ...]) -> Kind:
    return Classifier(SessionSettings(**patterns)).classify(ask, resolution)


def test_what_the_client_declares_wins() -> None:
    ask = request(declared_kind=TurnKind.SIDE, client="agent/1")
    assert kind_of(ask, trainable_patterns=("agent",)) == Kind(TurnKind.SIDE, "declared", 1.0)
    assert kind_of(request(declared_kind=TurnKind.MAIN), after(TurnKind.SIDE)).rule == "declared"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("planner", True),
        ("^coder/", True),
        ("CODER", True),
        ("Fix the", False),
        ("last_user:Fix the", True),
        ("system:Fix the", False),
        ("system:be brief", True),
        ("last_user:earlier", False),
        ("user:Fix", False),
    ],
)
def test_patterns_match_what_they_say(pattern: str, *, matches: bool) -> None:
    ask = request(
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "earlier"},
        REPLY,
        USER,
        turn_type="planner-step",
        client="coder/2.1",
    )
    assert (kind_of(ask, trainable_patterns=(pattern,)).rule == "trainable_pattern") is matches
    assert (kind_of(ask, auxiliary_patterns=(pattern,)).kind is TurnKind.SIDE) is matches


def test_trainable_patterns_come_before_auxiliary_ones() -> None:
    ask = request(client="coder")
    found = kind_of(ask, trainable_patterns=("coder",), auxiliary_patterns=("coder",))
    assert found.kind is TurnKind.MAIN


def test_a_pattern_that_is_none_is_the_operators_error() -> None:
    with pytest.raises(ConfigError, match="regular expression"):
        Classifier(SessionSettings(auxiliary_patterns=("system:(",)))


@pytest.mark.parametrize(
    ("ask", "resolution", "kind", "rule"),
    [
        (request(), NEW, TurnKind.UNKNOWN, "first_turn"),
        (request(tools=(TOOL,)), NEW, TurnKind.UNKNOWN, "first_turn"),
        (request(sampling=SCHEMA), NEW, TurnKind.SIDE, "one_shot_with_schema"),
        (request(sampling=SCHEMA, tools=(TOOL,)), NEW, TurnKind.UNKNOWN, "first_turn"),
        (
            request(),
            Resolution(session_id=UUID(int=2), parent=None, rule="named", beside_tools=True),
            TurnKind.SIDE,
            "one_shot_beside_tools",
        ),
        (request(USER, REPLY, USER), after(), TurnKind.MAIN, "extends_chain"),
        (request(USER, REPLY, USER), after(TurnKind.SIDE), TurnKind.SIDE, "extends_side"),
        (
            request(USER, REPLY, USER),
            after(TurnKind.MAIN, branch_reason="tools_changed"),
            TurnKind.UNKNOWN,
            "extends_without_tools",
        ),
        (
            request(USER, REPLY, USER, tools=(TOOL,)),
            after(TurnKind.MAIN, branch_reason="tools_changed"),
            TurnKind.MAIN,
            "extends_chain",
        ),
        (request(USER, REPLY), after(), TurnKind.UNKNOWN, "nothing_new"),
        # Reflection on results, without tools, is still the main line.
        (
            request(USER, REPLY, {"role": "tool", "tool_call_id": "c", "content": "4"}),
            after(TurnKind.MAIN, branch_reason="tools_changed"),
            TurnKind.MAIN,
            "extends_chain",
        ),
        (
            request(tools=(TOOL,)),
            Resolution(session_id=None, parent=None, rule="called", called=True),
            TurnKind.SIDE,
            "subagent",
        ),
    ],
)
def test_structure_decides_the_rest(
    ask: TurnRequest, resolution: Resolution, kind: TurnKind, rule: str
) -> None:
    found = kind_of(ask, resolution)
    assert (found.kind, found.rule) == (kind, rule)
    assert 0 < found.confidence < 1


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        (request(tools=(TOOL,), marker="subagent"), "subagent"),
        (request(USER, REPLY, USER, marker="compaction"), "compaction"),
        (
            request(
                {"role": "system", "content": "x-anthropic-billing: cc_is_subagent=true; rest"},
                USER,
                tools=(TOOL,),
            ),
            "subagent",
        ),
        (request({"role": "system", "content": "You are a title generator. Go."}, USER), "title"),
        (
            request(
                USER,
                REPLY,
                {
                    "role": "user",
                    "content": "Your task is to create a detailed summary of the conversation",
                },
                tools=(TOOL,),
            ),
            "compaction",
        ),
        (
            request(
                USER,
                REPLY,
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {
                    "role": "user",
                    "content": "Text only. Your task is to create a detailed summary of the"
                    " conversation so far.",
                },
                {"role": "system", "content": "<total_tokens>14959341 tokens left</total_tokens>"},
                tools=(TOOL,),
            ),
            "compaction",
        ),
        (request(client="opencode/1.18"), "one_shot_without_tools"),
    ],
)
def test_known_agents_reveal_calls_beside_their_main_line(ask: TurnRequest, rule: str) -> None:
    found = kind_of(ask)
    assert (found.kind, found.rule) == (TurnKind.SIDE, rule)
    # What the operator wants trained is trained.
    assert kind_of(ask, trainable_patterns=("subagent|compaction|title|opencode",)).kind is (
        TurnKind.MAIN
    )


def test_an_agent_that_leaves_its_tools_out_compacts() -> None:
    ask = request(USER, REPLY, USER, client="QwenCode/0.15.10 (linux; x64)")
    found = kind_of(ask, after(TurnKind.MAIN, branch_reason="tools_changed"))
    assert (found.kind, found.rule) == (TurnKind.SIDE, "compaction")


@pytest.mark.parametrize(
    "words",
    [
        "You are a title generator",
        "cc_is_subagent=true",
        "You are the component that summarizes internal chat history",
    ],
)
def test_a_user_who_says_the_same_words_is_on_the_main_line(words: str) -> None:
    ask = request({"role": "system", "content": "Be brief."}, {"role": "user", "content": words})
    assert kind_of(ask).kind is TurnKind.UNKNOWN


def test_a_held_turn_is_promoted_once_the_main_line_extends_it() -> None:
    main = Kind(TurnKind.MAIN, "extends_chain", 0.9)
    assert promoted_by(after(TurnKind.UNKNOWN), main)
    assert not promoted_by(after(TurnKind.SIDE), main)
    assert not promoted_by(after(TurnKind.UNKNOWN), Kind(TurnKind.SIDE, "declared", 1.0))
    assert not promoted_by(NEW, main)


def tool(content: str) -> Message:
    return {"role": "tool", "tool_call_id": "c", "content": content}


@pytest.mark.parametrize(
    ("new", "role", "count"),
    [
        ((tool("1"), tool("2"), tool("3")), "tool", 3),
        ((tool("1"), USER), "user", 2),
        ((USER,), "user", 1),
        ((USER, {"role": "assistant", "content": "not ours"}, USER), "user", 1),
        (({"role": "system", "content": "note"},), "system", 1),
        ((tool("1"), tool("2"), REMARK), "tool", 3),
    ],
)
def test_the_next_state_is_everything_that_followed(
    new: tuple[Message, ...], role: str, count: int
) -> None:
    assert next_state_of(request(USER, REPLY, *new), after()) == (new[:count], role)


def test_what_an_agent_asks_beside_the_line_is_no_word_of_a_person() -> None:
    result: Message = {"role": "tool", "tool_call_id": "a", "content": "1"}
    asked: Message = {"role": "user", "content": "Summarize. Do NOT call any tools."}
    compaction = request(USER, REPLY, result, asked)
    assert next_state_of(compaction, after(), beside=True) == ((result,), "tool")
    assert next_state_of(request(USER, REPLY, asked), after(), beside=True) is None


def test_nothing_that_follows_is_no_next_state() -> None:
    assert next_state_of(request(USER, REPLY), after()) is None
    assert next_state_of(request(USER, REPLY, REPLY), after()) is None
    assert next_state_of(request(USER), NEW) is None
    assert next_state_of(request(USER, REPLY, REMARK), after()) is None
