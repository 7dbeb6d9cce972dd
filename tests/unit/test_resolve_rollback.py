from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from gateway.records import (
    Candidate,
    FinishReason,
    Message,
    Resolution,
    Sampling,
    TurnKind,
    TurnRequest,
)
from gateway.resolve import Leaf, head_hash, may_roll_back, rolled_back

SYSTEM: Message = {"role": "system", "content": "You help."}
TOOLS = ({"type": "function", "function": {"name": "f"}},)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


PAST: tuple[Message, ...] = (SYSTEM, user("Plan a trip"), reply("Where to?"))
ASKED = (user("Oslo"),)
HEAD = head_hash([SYSTEM], ())


def request(*new: Message, past: Sequence[Message] = PAST, **more: Any) -> TurnRequest:
    return TurnRequest(
        dialect="openai_chat", model="m", messages=(*past, *new), sampling=Sampling(), **more
    )


def found(**more: Any) -> Resolution:
    parent = Candidate(
        turn_id=UUID(int=1),
        session_id=UUID(int=2),
        lineage_id=UUID(int=3),
        chain_hash=b"",
        depth=0,
        message_count=3,
        kind=TurnKind.MAIN,
        tools_hash=HEAD,
        finish_reason=FinishReason.STOP,
        continued=True,
        created_at=0.0,
    )
    fields: dict[str, Any] = {"rule": "prefix_branch", "new_from": 3, "parent": parent, **more}
    return Resolution(session_id=parent.session_id, **fields)


LEAF = Leaf(turn_id=UUID(int=4), asked=ASKED, tools_hash=HEAD)
EDITED = request(user("Bergen"))


def discards(
    ask: TurnRequest = EDITED, resolution: Resolution | None = None, leaf: Leaf = LEAF
) -> bool:
    resolution = resolution or found()
    return may_roll_back(ask, resolution) and rolled_back(ask, resolution, leaf)


def test_other_words_in_the_place_of_the_last_ones_discard_the_reply() -> None:
    assert discards()
    # Several turns back at once: the newest turn of the line that was left is the one discarded.
    assert discards(leaf=replace(LEAF, asked=(user("Oslo, in May"),)))


@pytest.mark.parametrize(
    "ask",
    [
        request(*ASKED),
        request({"role": "user", "content": [{"type": "text", "text": "Oslo \n"}]}),
        request(user("Oslo"), user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> 10:31")),
    ],
)
def test_the_same_words_again_discard_nothing(ask: TurnRequest) -> None:
    assert not discards(ask)


@pytest.mark.parametrize(
    "ask",
    [
        request(),
        request({"role": "tool", "tool_call_id": "call_1", "content": "21"}),
        request(reply("Nice."), user("Bergen")),
        request(user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> 10:32")),
    ],
)
def test_only_what_a_person_says_right_after_the_ancestor_discards(ask: TurnRequest) -> None:
    assert not discards(ask)


def test_a_first_follower_discards_nothing() -> None:
    resolution = found()
    assert resolution.parent is not None
    known = structs.replace(resolution.parent, continued=False)
    fresh = structs.replace(resolution, parent=known)
    assert not discards(resolution=fresh)
    assert not discards(resolution=Resolution(session_id=None, parent=None, rule="new"))


def test_equal_conversations_are_no_rollback_of_each_other() -> None:
    assert not discards(resolution=found(ambiguous=True))


@pytest.mark.parametrize(
    "leaf",
    [
        replace(LEAF, followed=True),
        replace(LEAF, delivered=False),
        replace(LEAF, siblings=3),
        replace(LEAF, tools_hash=head_hash([SYSTEM], TOOLS)),
    ],
)
def test_what_is_no_reply_that_its_user_saw_alone_is_not_discarded(leaf: Leaf) -> None:
    assert not discards(leaf=leaf)


def test_another_agent_over_the_same_history_discards_nothing() -> None:
    titler: Message = {"role": "system", "content": "You write titles."}
    assert not discards(request(user("Bergen"), past=(titler, *PAST[1:])))
    # Nor is what such an agent was told discarded by the main line that goes on.
    assert not discards(leaf=replace(LEAF, tools_hash=head_hash([titler], ())))


def test_a_system_prompt_with_the_clock_does_not_hide_a_rollback() -> None:
    clock: Message = {"role": "system", "content": "It is 10:31."}
    ask = request(user("Bergen"), past=(clock, *PAST[1:]))
    earlier = head_hash([{"role": "system", "content": "It is 10:30."}], ())
    assert discards(ask, leaf=replace(LEAF, tools_hash=earlier))
