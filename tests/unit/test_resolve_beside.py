"""Which turns were beside the line that a request goes on with."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from gateway.records import (
    Candidate,
    FinishReason,
    Message,
    Resolution,
    Sampling,
    TurnKind,
    TurnRequest,
)
from gateway.resolve import (
    Branch,
    EchoKind,
    beside,
    echoed,
    given_up,
    head_hash,
    is_beside,
    prefixes,
    resolve,
)
from gateway.resolve.beside import instructions_key, left_before, put_before

SYSTEM: Message = {"role": "system", "content": "You help."}
OTHER: Message = {"role": "system", "content": "You suggest questions."}
PAST: tuple[Message, ...] = (
    {"role": "user", "content": "Plan a trip"},
    {"role": "assistant", "content": "Where to?"},
)
TOOLS = ({"type": "function", "function": {"name": "look"}},)
SUGGEST = ({"type": "function", "function": {"name": "suggest"}},)
HEAD, SIDE_HEAD = head_hash([SYSTEM], TOOLS), head_hash([OTHER], ())
SUGGESTS = "Suggest three questions that I could ask next."


def request(words: str = "Oslo", system: Message = SYSTEM, tools: Any = TOOLS) -> TurnRequest:
    return TurnRequest(
        dialect="openai_chat", model="m", sampling=Sampling(), tools=tools,
        messages=(system, *PAST, {"role": "user", "content": words}),
    )  # fmt: skip


def turn(number: int, **more: Any) -> Candidate:
    fields: dict[str, Any] = {
        "kind": TurnKind.MAIN, "tools_hash": HEAD, "continued": True, "depth": 0,
        "message_count": 3, "chain_hash": b"", "created_at": 0.0, "parent_id": None,
        "finish_reason": FinishReason.STOP, "request_hash": bytes([number]), **more,
    }  # fmt: skip
    return Candidate(
        turn_id=UUID(int=number), session_id=UUID(int=100), lineage_id=UUID(int=101), **fields
    )


PARENT = turn(1)
FOUND = Resolution(session_id=PARENT.session_id, parent=PARENT, rule="prefix_branch", new_from=3)


def branch(**more: Any) -> Branch:
    fields: dict[str, Any] = {"kind": TurnKind.MAIN, "tools_hash": SIDE_HEAD, **more}
    return Branch(turn_id=UUID(int=7), **fields)


@pytest.mark.parametrize(
    "one",
    [
        branch(),
        branch(tools_hash=head_hash([OTHER], TOOLS)),
        branch(tools_hash=head_hash([SYSTEM], SUGGEST)),
        branch(tools_hash=HEAD, kind=TurnKind.UNKNOWN),
    ],
)
def test_what_the_line_before_and_after_does_not_have_was_beside_it(one: Branch) -> None:
    assert beside(request(), FOUND, [one]) == (UUID(int=7),)


@pytest.mark.parametrize(
    "one",
    [
        # Words that a user took back, a turn that went on, and one that is known already.
        branch(tools_hash=HEAD),
        branch(followed=True),
        branch(kind=TurnKind.SIDE),
    ],
)
def test_other_branches_were_not(one: Branch) -> None:
    assert beside(request(), FOUND, [one]) == ()


def test_a_line_that_has_new_instructions_itself_says_nothing_of_others() -> None:
    # A system prompt with the clock in it, three times; a hand-off that was asked for again.
    clock = head_hash([{"role": "system", "content": "It is 10:01."}], TOOLS)
    now = request(system={"role": "system", "content": "It is 10:02."})
    assert beside(now, FOUND, [branch(tools_hash=clock)]) == ()
    assert beside(request(system=OTHER, tools=()), FOUND, [branch()]) == ()


def test_a_group_of_equal_requests_is_no_branching() -> None:
    # Sampled several times on purpose, all with instructions other than the turn before.
    again = request(system=OTHER, tools=())
    group = [branch(), branch()]
    assert beside(again, FOUND, group) == ()
    assert not is_beside(again, FOUND, group)


def test_a_prompt_that_comes_after_the_line_has_gone_on_is_beside_it() -> None:
    line = branch(tools_hash=HEAD, followed=True)
    assert is_beside(request(system=OTHER), FOUND, [line])
    assert is_beside(request(tools=SUGGEST), FOUND, [line])
    assert not is_beside(request(), FOUND, [line])
    assert not is_beside(request(system=OTHER), FOUND, [replace_branch(line, delivered=False)])


def replace_branch(one: Branch, **changes: Any) -> Branch:
    return branch(**{"tools_hash": one.tools_hash, "followed": one.followed, **changes})


def test_a_reply_that_nobody_waited_for_was_given_up() -> None:
    assert given_up([branch(delivered=False)]) == (UUID(int=7),)
    assert given_up([branch(), branch(delivered=False, followed=True)]) == ()


def keys(words: str = SUGGESTS, system: Message = SYSTEM, tools: Any = TOOLS) -> list[str]:
    asked = request(words, system, tools)
    head = head_hash(asked.messages, asked.tools)
    found = echoed(asked.messages, b"key", head)
    return [echo.key for echo in found if echo.kind in (EchoKind.WORDS, EchoKind.INSTRUCTIONS)]


def test_what_was_asked_beside_another_line_is_held() -> None:
    words, instructions = keys()
    before = turn(3, kind=TurnKind.SIDE, continued=False, parent_id=UUID(int=2))
    for key in (words, instructions):
        assert put_before(keys(), [replace(before, echo=key)], PARENT)
    assert not put_before(keys(), [replace(before, echo="^other")], PARENT)
    # It is what people say, too, and went on.
    said = turn(4, echo=words)
    assert not put_before(keys(), [replace(before, echo=words), said], PARENT)


def held(asked: TurnRequest, *known: Candidate) -> bool:
    """Whether the request, placed behind `PARENT`, is taken for one that was asked before."""
    found = prefixes(asked.messages, b"key")
    parent = replace(PARENT, chain_hash=found[0].hash, continued=False)
    head = head_hash(asked.messages, asked.tools)
    resolution = resolve(
        asked, found=found, named=None, candidates=[parent, *known],
        echoes=echoed(asked.messages, b"key", head),
    )  # fmt: skip
    assert resolution.parent == parent
    return resolution.beside


def test_instructions_tell_only_where_they_are_not_the_conversations_own() -> None:
    # Once a prompt without the tools of its line was beside it, with what others always have.
    bare = head_hash([OTHER], ())
    side = turn(
        3, kind=TurnKind.SIDE, continued=False, tools_hash=bare,
        echo=instructions_key(bare, b"key"),
    )  # fmt: skip
    asked = request("Any other words will do.", OTHER, ())
    assert held(asked, side)
    assert not held(request("Any other words will do."), side)
    plain = replace(PARENT, tools_hash=bare)
    found = prefixes(asked.messages, b"key")
    parent = replace(plain, chain_hash=found[0].hash, continued=False)
    resolution = resolve(
        asked, found=found, named=None, candidates=[parent, side],
        echoes=echoed(asked.messages, b"key", bare),
    )  # fmt: skip
    assert not resolution.beside


def test_short_words_are_no_sign() -> None:
    assert len(keys("Go on.")) == 1
    assert keys("Go on.") == keys("Why?")
    assert keys("Go on.") != keys("Go on.", system=OTHER)


def test_what_was_asked_after_the_reply_before_and_left_is_asked_again() -> None:
    line = turn(2, parent_id=UUID(int=9))
    left = turn(3, parent_id=UUID(int=9), continued=False, echo=keys()[0])
    assert put_before(keys(), [left], line)
    assert left_before(keys(), [left], line) == left
    for other in (
        replace(left, delivered=False),
        replace(left, continued=True),
        replace(left, session_id=UUID(int=5)),
        # One of a group that the line's own request is of.
        replace(left, request_hash=line.request_hash),
    ):
        assert left_before(keys(), [other], line) is None
        assert not put_before(keys(), [replace(other, kind=TurnKind.UNKNOWN)], line)
