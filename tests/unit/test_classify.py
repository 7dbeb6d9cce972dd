from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from gateway.classify import Classifier, Kind, marker_of, next_state_of, promoted_by
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


def said(words: str) -> Message:
    return {"role": "user", "content": words}


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
        (request(sampling=SCHEMA), NEW, TurnKind.UNKNOWN, "one_shot_with_schema"),
        (
            request(USER, REPLY, USER),
            after(TurnKind.MAIN, beside=True),
            TurnKind.UNKNOWN,
            "asked_beside_before",
        ),
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
        (request(said("### Task:\nSuggest 3-5 relevant follow-up questions.")), "follow_ups"),
        (request(USER, REPLY, said("### Task:\nGenerate 1-3 broad tags for it.")), "tags"),
        (request(said("### Task:\nGenerate a concise, 3-5 word title with an emoji.")), "title"),
        (
            request(said("### Task:\nAnalyze the chat history to see which search queries help.")),
            "search_queries",
        ),
        (request(said("Provide a concise, 5-word-or-less title for the conversation.")), "title"),
        (
            request({"role": "system", "content": "*Briefly* summarize this partial conversation"}),
            "compaction",
        ),
    ],
)
def test_known_agents_reveal_calls_beside_their_main_line(ask: TurnRequest, rule: str) -> None:
    found = kind_of(ask)
    assert (found.kind, found.rule) == (TurnKind.SIDE, rule)
    # What the operator wants trained is trained.
    assert kind_of(ask, trainable_patterns=(f"{rule}|opencode",)).kind is TurnKind.MAIN


@pytest.mark.parametrize(
    ("system", "last", "marker"),
    [
        # The first in the list of all phrases counts, wherever each of two was found.
        ("cc_is_subagent=true", "### Task: Generate 1-3 broad tags", "subagent"),
        ("You are a conversation summarizer", "### Task: Generate 1-3 broad tags", "tags"),
        (
            "You are a professional conversation summarizer. Write a title.",
            "### Task: Generate 1-3 broad tags",
            "tags",
        ),
        ("You are a title generator", "CHECKPOINT", "title"),
        (
            "Be brief.",
            "### Task: Generate 1-3 broad tags. You are performing a CONTEXT CHECKPOINT COMPACTION",
            "compaction",
        ),
        ("*Briefly* summarize this partial conversation for Git commit", "Go.", "compaction"),
        ("It generates concise, one-line Git commit messages", "Go.", "commit_message"),
        (
            "You are a summarization assistant. Generate a short, sentence-case title",
            "Go.",
            "title",
        ),
    ],
)
def test_of_several_phrases_the_first_in_the_list_counts(
    system: str, last: str, marker: str
) -> None:
    messages = ({"role": "system", "content": system}, {"role": "user", "content": last})
    assert marker_of(request(*messages)) == marker


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
        "### Task:\nRespond to the user query using the provided context.\n<context>",
        "How do I make a model suggest 3-5 relevant follow-up questions?",
        "Write a title for the conversation of the two in chapter 2",
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


def one_shot(
    *new: Message, grammar: bool = False, max_tokens: int | None = None, **more: Any
) -> bool:
    """Whether a request is held for what it wants of a turn whose own reply was as given."""
    plain = after(TurnKind.MAIN)
    assert plain.parent is not None
    parent = replace(plain.parent, grammar=grammar, max_tokens=max_tokens)
    found = replace(plain, parent=parent, branch_reason=more.pop("reason", None))
    kind = kind_of(request(USER, REPLY, *new, **more), found)
    assert kind.rule in ("one_shot_over_history", "extends_chain")
    return kind.kind is TurnKind.UNKNOWN


def test_a_reply_of_another_form_than_the_last_is_held() -> None:
    assert one_shot(USER, sampling=SCHEMA)
    # Replies by a schema throughout, and a final answer by one after tools, are the main line.
    assert not one_shot(USER, sampling=SCHEMA, grammar=True)
    assert not one_shot(tool("4"), sampling=SCHEMA)


def test_a_few_tokens_by_other_instructions_are_held_where_the_last_reply_had_many() -> None:
    few = Sampling(max_tokens=20)
    assert one_shot(USER, sampling=few, max_tokens=4096, reason="system_changed")
    assert not one_shot(USER, sampling=few, max_tokens=20, reason="system_changed")
    many = Sampling(max_tokens=1000)
    assert not one_shot(USER, sampling=many, max_tokens=32_000, reason="system_changed")
    # By the same instructions it is what a person asks next, in few words.
    assert not one_shot(USER, sampling=few, max_tokens=4096)


def test_a_forced_call_of_other_tools_is_held() -> None:
    forced = {"tools": (TOOL,), "tool_choice": "required"}
    assert one_shot(USER, reason="tools_changed", **forced)
    assert not one_shot(USER, **forced)
    assert not one_shot(USER, reason="tools_changed", tools=(TOOL,))


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


def test_a_question_about_a_session_that_it_quotes_is_no_main_line() -> None:
    quotes = Resolution(session_id=None, parent=None, rule="quotes")
    ask = request({"role": "user", "content": "Suggest a title.\nUser: Hi\nAssistant: Hello"})
    assert kind_of(ask, quotes) == Kind(TurnKind.SIDE, "about_session", 0.8)
    # Somebody who pastes what he was told and goes on with it is held, not set aside.
    pasted = request({"role": "user", "content": "User: Hi\nAssistant: Hello\nIs this polite?"})
    assert kind_of(pasted, quotes).kind is TurnKind.UNKNOWN
    assert kind_of(ask).kind is TurnKind.UNKNOWN
