from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.records import TurnKind
from gateway.wire.clients import Caller, caller

S, T, P = "0199-root", "0199-thread", "0199-parent"


@pytest.mark.parametrize(
    ("headers", "name", "parent", "marker"),
    [
        ({}, None, None, ""),
        ({"x-session-id": S}, S, None, ""),
        ({"x-session-id": T, "x-parent-session-id": S}, T, S, "subagent"),
        ({"x-session-affinity": T, "x-parent-session-id": S}, T, S, "subagent"),
        # A parent without a session of one's own says nothing.
        ({"x-parent-session-id": S}, None, None, ""),
        ({"x-claude-code-session-id": S}, S, None, ""),
        (
            {"x-claude-code-session-id": S, "x-claude-code-agent-id": "a7"},
            f"{S}/a7",
            S,
            "subagent",
        ),
        ({"session-id": S, "thread-id": S}, S, None, ""),
        (
            {
                "session-id": S,
                "thread-id": T,
                "x-codex-parent-thread-id": S,
                "x-openai-subagent": "collab_spawn",
            },
            f"{S}/{T}",
            S,
            "subagent",
        ),
        (
            {"session-id": S, "thread-id": T, "x-codex-parent-thread-id": P},
            f"{S}/{T}",
            f"{S}/{P}",
            "subagent",
        ),
        (
            {"session-id": S, "thread-id": S, "x-codex-turn-metadata": '{"request_kind":"turn"}'},
            S,
            None,
            "",
        ),
        (
            {
                "session-id": S,
                "thread-id": S,
                "x-codex-turn-metadata": '{"a": {}, "request_kind": "compaction"}',
            },
            S,
            None,
            "compaction",
        ),
        ({"session_id": S, "x-openai-subagent": "review"}, S, None, "subagent"),
    ],
)
def test_sessions_and_sub_agents_are_named_by_their_agents(
    headers: dict[str, str], name: str | None, parent: str | None, marker: str
) -> None:
    found = caller(headers, 200)
    assert (found.session_name, found.parent_session_name, found.marker) == (name, parent, marker)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-session-id": "x" * 201},
        {"x-session-id": "a\0b"},
        {"x-session-id": "a", "x-parent-session-id": "x" * 201},
        {"x-claude-code-session-id": "x" * 150, "x-claude-code-agent-id": "y" * 60},
        {"session-id": "a", "thread-id": "b\x7f"},
    ],
)
def test_names_that_cannot_be_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        caller(headers, 200)
    assert caught.value.code == "invalid_id"


@pytest.mark.parametrize(
    ("name", "read"),
    [
        # As servers hand over what was sent as UTF-8, and what was not.
        ("\u65e5\u672c".encode().decode("latin-1"), "\u65e5\u672c"),
        (("\u00e9" * 100).encode().decode("latin-1"), "\u00e9" * 100),
        ("caf\u00e9", "caf\u00e9"),
        ("\u65e5\u672c", "\u65e5\u672c"),
    ],
)
def test_a_name_is_read_as_it_was_sent(name: str, read: str) -> None:
    assert caller({"x-session-id": name}, 200).session_name == read


def test_what_everyone_sends_says_who_and_how_often() -> None:
    headers = {"user-agent": " OpenAI/Python 2.1 ", "x-stainless-retry-count": "2", "host": "h"}
    assert caller(headers, 200) == Caller(client="OpenAI/Python 2.1", retry_count=2)
    assert caller({"host": "h"}, 200) == Caller()


@pytest.mark.parametrize(
    ("name", "sent", "told"),
    [
        ("x-turn-type", "Side", {"declared_kind": TurnKind.SIDE, "turn_type": "Side"}),
        ("x-session-done", "yes", {"session_done": True}),
        ("idempotency-key", "k", {"idempotency_key": "k"}),
        ("x-group-id", "g", {"group_name": "g"}),
        ("x-openai-subagent", "review", {"marker": "subagent"}),
        ("x-codex-turn-metadata", '{"request_kind": "compaction"}', {"marker": "compaction"}),
        ("x-opencode-session", "s", {"session_name": "s"}),
    ],
)
def test_each_header_is_heard_where_it_is_the_only_one(
    name: str, sent: str, told: dict[str, object]
) -> None:
    assert caller({"user-agent": "a", name: sent}, 200) == Caller(client="a", **told)  # type: ignore[arg-type]
