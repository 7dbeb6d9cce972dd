from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    Echo,
    EchoKind,
    NamedSession,
    call_key,
    chain,
    echoed,
    echoes_of,
    head_hash,
    prefixes,
    request_hash,
    resolve,
    retried,
    seed,
    told_session,
)

KEY, A, B, NAMED = (UUID(int=n) for n in range(1, 5))
START = seed(KEY, "m")
USER: Message = {"role": "user", "content": "What is the weather?"}
TOOLS = ({"type": "function", "function": {"name": "f"}},)


def call(id_: str = "call_1", name: str = "f", arguments: str = '{"a": 1, "b": [2]}') -> Any:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(content: Any = "Sunny.", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def hash_of(*messages: Message) -> bytes:
    return chain(messages, START)[-1]


def test_the_chain_is_what_its_definition_says() -> None:
    start = hashlib.sha256(KEY.bytes + b"m").digest()
    assert start == START
    form = msgspec.msgpack.encode(["user", None, "What is the weather?", [], None])
    assert chain([USER], START) == [hashlib.sha256(start + form).digest()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("Sunny."), {"content": "Sunny.", "role": "assistant"}),
        (said("Sunny."), said("Sunny. \n")),
        (said("Sunny."), said([{"type": "text", "text": "Sun"}, {"type": "text", "text": "ny."}])),
        (said("Sunny."), said("Sunny.", tool_calls=[])),
        (said("Sunny."), said("Sunny.", tool_calls=None, function_call=None, audio=None)),
        (said("Sunny."), said("Sunny.", reasoning_content="Hm.", anything={"x": 1})),
        (said("Sunny."), said([{"type": "text", "text": "Sunny.", "cache_control": {"t": 1}}])),
        (said(None, tool_calls=[call()]), said("", tool_calls=[call()])),
        (said(None, tool_calls=[call()]), {"role": "assistant", "tool_calls": [call()]}),
        (said(None, tool_calls=[call()]), said([], tool_calls=[call()])),
        (said(None, tool_calls=[call()]), said(None, tool_calls=[call("call1")])),
        (
            said(None, tool_calls=[call()]),
            said(None, tool_calls=[call(arguments='{"b":[2.0],"a":1}')]),
        ),
        (
            said(None, tool_calls=[call(arguments='{"a": "\\u00e9"}')]),
            said(None, tool_calls=[call(arguments='{"a":"é"}')]),
        ),
        (
            said(None, tool_calls=[call(arguments="")]),
            said(None, tool_calls=[call(arguments="{}")]),
        ),
        (
            said(None, tool_calls=[call(arguments="not json")]),
            said(None, tool_calls=[call(arguments=" not json\n")]),
        ),
    ],
)
def test_harmless_differences_are_none(one: Message, other: Message) -> None:
    assert hash_of(USER, one) == hash_of(USER, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("Sunny."), said("sunny.")),
        (said("Sunny."), said(" Sunny.")),
        (said("Sunny."), {"role": "user", "content": "Sunny."}),
        (said("Sunny."), said("Sunny.", tool_calls=[call()])),
        (said("", tool_calls=[call()]), said("", tool_calls=[call(name="g")])),
        (said("", tool_calls=[call()]), said("", tool_calls=[call(), call("call_2")])),
        (
            said("", tool_calls=[call(arguments='{"a": 1}')]),
            said("", tool_calls=[call(arguments='{"a": "1"}')]),
        ),
        (
            said("", tool_calls=[call(arguments='{"a": true}')]),
            said("", tool_calls=[call(arguments='{"a": 1}')]),
        ),
        (
            said("", tool_calls=[call(arguments="[1, 2]")]),
            said("", tool_calls=[call(arguments="[2, 1]")]),
        ),
        ({"role": "user", "content": "a", "name": "x"}, {"role": "user", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
        ),
    ],
)
def test_differences_in_meaning_are_kept(one: Message, other: Message) -> None:
    assert hash_of(USER, one) != hash_of(USER, other)


def results(first: str, second: str, *, swapped: bool = False) -> list[Message]:
    ids = (second, first) if swapped else (first, second)
    return [
        USER,
        said(None, tool_calls=[call(first), call(second, arguments='{"a": 2}')]),
        {"role": "tool", "tool_call_id": ids[0], "content": "x"},
        {"role": "tool", "tool_call_id": ids[1], "content": "y"},
    ]


def test_call_ids_count_by_their_position() -> None:
    assert chain(results("call_a", "call_b"), START) == chain(results("calla", "callb"), START)
    assert hash_of(*results("a", "b")) != hash_of(*results("a", "b", swapped=True))


def test_ids_used_again_do_not_confuse_results() -> None:
    twice = [*results("a", "b"), said("", tool_calls=[call("a"), call("c")])]
    one = hash_of(*twice, {"role": "tool", "tool_call_id": "a", "content": "z"})
    other = hash_of(*twice, {"role": "tool", "tool_call_id": "c", "content": "z"})
    assert one != other


def test_system_messages_are_left_out() -> None:
    system: Message = {"role": "system", "content": "It is 10:31."}
    hashes = chain([system, USER, {"role": "developer", "content": "x"}, said()], START)
    assert hashes[0] == START
    assert hashes[1] == hashes[2] == hash_of(USER)
    assert hashes[3] == hash_of(USER, said())


def test_keys_and_models_have_chains_of_their_own() -> None:
    starts = {seed(KEY, "m"), seed(A, "m"), seed(KEY, "n")}
    assert len({chain([USER], start)[-1] for start in starts}) == 3


def test_prefixes_end_in_replies_and_come_deepest_first() -> None:
    messages = [USER, said("a"), USER, said("b"), USER]
    hashes = chain(messages, START)
    assert [(prefix.hash, prefix.message_count) for prefix in prefixes(messages, START)] == [
        (hashes[3], 4),
        (hashes[1], 2),
    ]
    assert prefixes([USER], START) == []


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-9, 9)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
)
def test_arguments_written_again_match(value: Any) -> None:
    compact = json.dumps({"v": value, "a": 1}, separators=(",", ":"))
    spaced = json.dumps({"a": 1, "v": value}, ensure_ascii=False, indent=1)
    one, other = (said("", tool_calls=[call(arguments=text)]) for text in (compact, spaced))
    assert hash_of(one) == hash_of(other)


def test_arguments_nested_without_end_are_text() -> None:
    deep = "[" * 50_000
    assert hash_of(said("", tool_calls=[call(arguments=deep)])) != hash_of(
        said("", tool_calls=[call(arguments=deep + "[")])
    )
    closed = "[" * 900 + "]" * 900
    assert hash_of(said("", tool_calls=[call(arguments=closed)])) != hash_of(said())


def test_long_histories_have_a_prefix_for_every_reply() -> None:
    found = prefixes([USER, said("x" * 100)] * 2_000, START)
    assert len({prefix.hash for prefix in found}) == 2_000
    assert (found[0].message_count, found[-1].message_count) == (4_000, 2)


def test_a_mark_for_caches_that_moves_changes_no_tools() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = head_hash([USER], [*TOOLS, other])
    assert head_hash([USER], [*TOOLS, {**other, **mark}]) == plain
    assert head_hash([USER], [{**TOOLS[0], **mark}, other]) == plain
    within = {"type": "function", "function": {"name": "g", **mark}}
    assert head_hash([USER], [*TOOLS, within]) == plain
    of_that_name = {"name": "g", "parameters": {"properties": mark}}
    named = {"type": "function", "function": of_that_name}
    assert head_hash([USER], [*TOOLS, named]) != plain


def test_request_and_head_hashes_tell_what_changed() -> None:
    assert request_hash([{"role": "user", "content": "a"}], ()) == request_hash(
        [{"content": "a", "role": "user"}], ()
    )
    assert request_hash([USER], ()) != request_hash([USER], TOOLS)
    assert request_hash([said("a")], ()) != request_hash([said("a ")], ())
    plain = head_hash([{"role": "system", "content": "s"}, USER], ())
    assert len(plain) == 32
    assert head_hash([{"role": "developer", "content": "s"}], TOOLS)[:16] == plain[:16]
    assert head_hash([{"role": "system", "content": "s"}], TOOLS)[16:] != plain[16:]
    assert head_hash([{"role": "system", "content": "t"}], ())[:16] != plain[:16]


HISTORY: tuple[Message, ...] = (USER, said("a"), USER, said("b"), USER)


def request(messages: Sequence[Message] = HISTORY, **more: Any) -> TurnRequest:
    return TurnRequest(
        dialect="openai_chat", model="m", messages=tuple(messages), sampling=Sampling(), **more
    )


def turn(
    depth: int,
    *,
    session: UUID = A,
    number: int = 10,
    continued: bool = False,
    finish: FinishReason = FinishReason.STOP,
    tools: Sequence[Any] = (),
    system: str | None = None,
    messages: Sequence[Message] = HISTORY,
) -> Candidate:
    head: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return Candidate(
        turn_id=UUID(int=number),
        session_id=session,
        lineage_id=B,
        chain_hash=chain(messages[:depth], START)[-1],
        depth=depth // 2,
        message_count=depth,
        kind=TurnKind.UNKNOWN,
        tools_hash=head_hash(head, tools),
        finish_reason=finish,
        continued=continued,
        created_at=float(number),
    )


def decide(
    *candidates: Candidate,
    named: NamedSession | None = None,
    ask: TurnRequest | None = None,
    retry: Candidate | None = None,
) -> Resolution:
    ask = ask or request()
    return resolve(
        ask,
        found=prefixes(ask.messages, START),
        named=named,
        candidates=candidates,
        echoes=echoed(ask.messages, START),
        retry=retry,
    )


def test_nothing_stored_is_a_new_session() -> None:
    assert decide() == Resolution(session_id=None, parent=None, rule="new")


def test_the_deepest_prefix_is_the_parent() -> None:
    deep, shallow = turn(4, number=11), turn(2, number=12, continued=True)
    found = decide(shallow, deep)
    assert (found.parent, found.session_id, found.rule) == (deep, A, "prefix")
    assert (found.new_from, found.branch_reason, found.ambiguous) == (4, None, False)


def test_of_equal_turns_the_one_not_continued_is_the_parent() -> None:
    taken, free = turn(4, session=A, continued=True, number=12), turn(4, session=B, number=11)
    found = decide(taken, free)
    assert (found.parent, found.session_id, found.ambiguous) == (free, B, False)


def test_two_free_turns_are_marked_ambiguous() -> None:
    found = decide(turn(4, session=A, number=11), turn(4, session=B, number=12))
    assert (found.session_id, found.ambiguous) == (B, True)


def test_equal_turns_all_continued_are_never_merged() -> None:
    found = decide(
        turn(4, session=A, continued=True), turn(4, session=B, continued=True, number=11)
    )
    assert found == Resolution(
        session_id=None,
        parent=None,
        rule="ambiguous_prefix",
        branch_reason="ambiguous",
        ambiguous=True,
    )


def test_a_single_turn_continued_twice_is_a_branch_of_its_session() -> None:
    found = decide(turn(4, continued=True))
    assert (found.session_id, found.rule, found.branch_reason) == (A, "prefix_branch", None)


def test_the_same_system_prompt_tells_equal_turns_apart() -> None:
    ask = request([{"role": "system", "content": "two"}, *HISTORY])
    one, two = turn(4, session=A, system="one", number=12), turn(4, session=B, system="two")
    found = decide(one, two, ask=ask)
    assert (found.parent, found.ambiguous, found.branch_reason) == (two, False, None)
    assert found.new_from == 5


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (turn(2), "history_edited"),
        (turn(4, finish=FinishReason.LENGTH), "parent_truncated"),
        (turn(4, finish=FinishReason.ABORT), "parent_truncated"),
        (turn(4, system="10:30"), "system_changed"),
        (turn(4, tools=TOOLS), "tools_changed"),
        (turn(4, finish=FinishReason.TOOL_CALLS), None),
    ],
)
def test_why_a_parent_cannot_be_extended(candidate: Candidate, reason: str | None) -> None:
    assert decide(candidate).branch_reason == reason


def test_a_named_session_looks_only_inside_itself() -> None:
    named = NamedSession(id=NAMED, turns=3)
    outside, inside = turn(4, session=A), turn(2, session=NAMED, number=9)
    found = decide(outside, inside, named=named)
    assert (found.parent, found.session_id, found.rule) == (inside, NAMED, "named_prefix")
    assert decide(outside, named=named) == Resolution(
        session_id=NAMED, parent=None, rule="named", branch_reason="history_edited"
    )


def test_a_named_session_takes_branches_and_new_roots() -> None:
    named = NamedSession(id=NAMED, turns=3, has_tools=True)
    one, two = (turn(4, session=NAMED, continued=True, number=n) for n in (11, 12))
    found = decide(one, two, named=named)
    assert (found.parent, found.rule) == (two, "named_prefix_branch")
    assert decide(named=named, ask=request([USER])) == Resolution(
        session_id=NAMED, parent=None, rule="named", branch_reason="new_root", beside_tools=True
    )


def test_an_unknown_name_opens_a_session() -> None:
    found = decide(named=NamedSession(id=None))
    assert found == Resolution(session_id=None, parent=None, rule="named")


@pytest.mark.parametrize(
    ("delivered", "key", "ask", "at", "is_retry"),
    [
        (True, None, {}, 10.0, False),
        (True, None, {"retry_count": 1}, 10.0, True),
        (True, None, {"retry_count": 1}, 10_000.0, False),
        (False, None, {}, 10.0, True),
        (True, "k", {"idempotency_key": "k"}, 10.0, True),
        (True, "k", {"idempotency_key": "other"}, 10.0, False),
        (True, None, {"idempotency_key": None}, 10.0, False),
    ],
)
def test_a_retry_needs_more_than_an_equal_body(
    *, delivered: bool, key: str | None, ask: dict[str, Any], at: float, is_retry: bool
) -> None:
    digest = request_hash([USER], ())
    attempt = replace(
        turn(2), request_hash=digest, idempotency_key=key, delivered=delivered, created_at=5.0
    )
    found = retried(request([USER], **ask), digest, [attempt], at)
    assert found == (attempt if is_retry else None)
    other = request_hash([USER, USER], ())
    assert retried(request([USER], retry_count=1), other, [attempt], at) is None


def test_a_retry_count_does_not_take_what_another_user_was_told() -> None:
    digest = request_hash([USER], ())
    ask = request([USER], retry_count=1)
    theirs, mine = (
        replace(turn(2, session=session, number=number), request_hash=digest)
        for session, number in ((A, 11), (B, 12))
    )
    assert retried(ask, digest, [theirs], 20.0) == theirs
    assert retried(ask, digest, [replace(theirs, continued=True)], 20.0) is None
    assert retried(ask, digest, [theirs, mine], 20.0) is None
    lost = replace(mine, delivered=False)
    assert retried(ask, digest, [theirs, lost], 20.0) == lost


def test_keys_and_models_have_request_hashes_of_their_own() -> None:
    hashes = {request_hash([USER], (), start) for start in (START, seed(A, "m"), seed(KEY, "n"))}
    assert len(hashes) == 3


def test_a_retry_takes_the_place_of_what_it_asks_for_again() -> None:
    first = replace(turn(2, number=20), parent_id=None)
    found = decide(ask=request([USER], retry_count=1), retry=first)
    assert found == Resolution(session_id=A, parent=None, rule="retry")
    # Two equal turns that both go on would be ambiguous; the attempt says which of them it was.
    one, two = (turn(4, session=s, continued=True, number=n) for s, n in ((A, 11), (B, 12)))
    attempt = replace(turn(5, session=A, number=20), parent_id=one.turn_id)
    found = decide(one, two, retry=attempt)
    assert (found.session_id, found.parent, found.rule, found.new_from) == (A, one, "retry", 4)
    assert found.branch_reason is None


def minted(number: int) -> str:
    return f"call_{number:024x}"


def calling(*numbers: int, text: Any = None) -> Message:
    return said(text, tool_calls=[call(minted(number)) for number in numbers])


def result(id_: str, content: str = "4") -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": content}


@pytest.mark.parametrize(
    ("id_", "key"),
    [
        (minted(1), f"{1:024x}"),
        (minted(1).replace("_", ""), f"{1:024x}"),
        (minted(1).replace("call_", "toolu_"), f"{1:024x}"),
        ("call_1", None),
        ("call_" + "g" * 24, None),
        (minted(1) + "0", None),
        ("", None),
    ],
)
def test_only_ids_that_were_minted_here_are_keys(id_: str, key: str | None) -> None:
    assert call_key(id_) == key


@pytest.mark.parametrize(
    "follow_up",
    [
        [USER, calling(1, 2), result(minted(1)), result(minted(2))],
        # OpenClaw drops what is no letter; others keep only the results, or one call of two.
        [USER, said(None, tool_calls=[call(minted(2).replace("_", ""))]), result("x")],
        [USER, said("I called."), result(minted(1))],
        # smolagents turns calls into text.
        [USER, said(f"Calling tools: [{{'id': '{minted(1)}', 'name': 'f'}}]"), USER],
    ],
)
def test_ids_come_back_in_many_forms(follow_up: list[Message]) -> None:
    stored = echoes_of([USER], calling(1, 2), START)
    assert stored == (f"{1:024x}", f"{2:024x}")
    keys = [echo for echo in echoed(follow_up, START) if echo.kind is EchoKind.CALL]
    assert keys
    assert {echo.key for echo in keys} <= set(stored)
    assert {echo.message_count for echo in keys} == {2}


def test_an_outline_is_of_the_first_user_message_and_all_replies() -> None:
    outline, _ = echoes_of([USER, said("a"), USER], said("One two."), START)
    same = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": " What is  the weather?\n"},
        said([{"type": "text", "text": "a"}]),
        {"role": "user", "content": "another question"},
        said("One\n\ntwo. "),
        USER,
    ]
    assert Echo(outline, 5, EchoKind.OUTLINE) in echoed(same, START)
    for changed in (
        [*same[:4], said("One three."), USER],
        [*same[:2], said("b"), *same[3:]],
        [{"role": "user", "content": "Hello?"}, *same[2:]],
    ):
        assert outline not in {other.key for other in echoed(changed, START)}
    assert outline not in {other.key for other in echoed(same, seed(A, "m"))}
    assert echoed([{"role": "user", "content": "Hi"}], START) == []
    assert echoes_of([USER], said(""), START) == ()


def test_the_last_exchange_is_left_when_the_head_is_dropped() -> None:
    _, exchange = echoes_of([USER, said("a"), {"role": "user", "content": "b"}], said("c"), START)
    window = [{"role": "user", "content": "b"}, said("c"), USER]
    assert Echo(exchange, 2, EchoKind.OUTLINE) in echoed(window, START)
    other = [{"role": "user", "content": "d"}, said("c"), USER]
    assert exchange not in {echo.key for echo in echoed(other, START)}


TASK = "Read the logs and say done"


def test_a_task_is_what_a_call_gives_an_agent() -> None:
    arguments = json.dumps({"description": "short", "prompt": f" {TASK}\n", "n": 3})
    calls = said(None, tool_calls=[call(minted(1), "spawn_agent", arguments)])
    id_, task = echoes_of([USER], calls, START)
    assert id_ == f"{1:024x}"
    assert echoed([{"role": "user", "content": TASK}], START) == [Echo(task, 1, EchoKind.TASK)]
    other = said(None, tool_calls=[call(minted(1), "read_file", arguments)])
    assert echoes_of([USER], other, START) == (id_,)
    for broken in ("[", "[1]", '"text of some length"'):
        bad = said(None, tool_calls=[call(minted(1), "agent", broken)])
        assert echoes_of([USER], bad, START) == (id_,)


def test_a_sub_agent_without_a_name_is_linked_to_its_caller() -> None:
    ask = request([{"role": "user", "content": TASK}])
    (echo,) = echoed(ask.messages, START)
    caller = replace(turn(2, session=A), echo=echo.key)
    found = decide(caller, ask=ask)
    assert found == Resolution(
        session_id=None, parent=None, rule="called", parent_session_id=A, called=True
    )
    # An answered call has no agent at work, and two callers are not told apart.
    assert decide(replace(caller, continued=True), ask=ask).rule == "new"
    other = replace(turn(2, session=B, number=12), echo=echo.key)
    assert decide(caller, other, ask=ask).rule == "new"


def test_an_echoed_id_wins_over_a_shallower_prefix() -> None:
    ask = request([USER, said("a"), {"role": "user", "content": "edited"}, calling(7), USER])
    shallow = turn(2, messages=ask.messages, number=30)
    called = replace(turn(4), echo=f"{7:024x}")
    found = decide(shallow, called, ask=ask)
    assert (found.parent, found.rule, found.new_from) == (called, "echo", 4)
    # What came before is not what the parent saw: its ids cannot be extended.
    assert found.branch_reason == "history_edited"


def test_an_echoed_id_of_an_unchanged_history_extends_it() -> None:
    messages = (USER, calling(7), result(minted(7)))
    stored = turn(2, messages=messages)
    found = decide(replace(stored, echo=f"{7:024x}"), stored, ask=request(messages))
    assert (found.rule, found.branch_reason, found.new_from) == ("echo", None, 2)


def test_an_outline_of_several_sessions_tells_nothing() -> None:
    edited = (USER, said("a"), {"role": "user", "content": "edited"}, said("b"), USER)
    echo = next(each for each in echoed(edited, START) if each.kind is EchoKind.OUTLINE)
    one = replace(turn(4, session=A), echo=echo.key)
    two = replace(turn(4, session=B, number=12), echo=echo.key)
    found = decide(one, ask=request(edited))
    assert (found.parent, found.rule, found.branch_reason) == (one, "outline", "history_edited")
    assert decide(one, two, ask=request(edited)).rule == "new"
    # Then the deepest prefix counts, as always.
    found = decide(one, two, turn(2, session=B, number=9), ask=request(edited))
    assert (found.session_id, found.rule) == (B, "prefix")


def test_a_turn_named_by_its_id_is_the_parent() -> None:
    stored = turn(4, continued=True)
    found = decide(turn(4, number=12), stored, ask=request(previous_turn=stored.turn_id))
    assert (found.parent, found.rule) == (stored, "previous_branch")


def test_another_person_of_the_same_key_is_not_continued() -> None:
    theirs = replace(turn(4), user="ann")
    assert decide(theirs, ask=request(user="bob")).rule == "new"
    assert decide(theirs, ask=request(user="ann")).parent == theirs
    assert decide(theirs).parent == theirs


def test_a_new_name_for_an_old_history_is_a_fork() -> None:
    found = decide(turn(4), named=NamedSession(id=None))
    assert found == Resolution(
        session_id=None,
        parent=None,
        rule="named_fork",
        branch_reason="forked",
        parent_session_id=A,
    )
    two = (turn(4), turn(4, session=B, number=12))
    assert decide(*two, named=NamedSession(id=None)).parent_session_id is None


def test_what_follows_a_summary_is_a_new_root_of_its_session() -> None:
    named = NamedSession(id=NAMED, turns=3, compacted=True)
    found = decide(named=named, ask=request([USER]))
    assert (found.session_id, found.branch_reason) == (NAMED, "compacted")


REMARK: Message = {"role": "user", "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> at 10:31"}


def test_remarks_that_move_do_not_break_the_chain() -> None:
    stored = chain([USER, REMARK, calling(1)], START)[-1]
    later = [USER, calling(1), result(minted(1)), REMARK]
    assert prefixes(later, START)[0].hash == stored
    assert head_hash([USER, REMARK], ()) != head_hash([USER], ())


def test_a_session_is_named_where_openclaw_names_it() -> None:
    line = "do it\n\nRuntime: agent=main | session=main | sessionId=ff01-aabb | host=x"
    assert told_session([{"role": "user", "content": line}, USER]) == "ff01-aabb"
    assert told_session([USER, {"role": "user", "content": line}]) is None
    assert told_session([{"role": "user", "content": "my sessionId=ff014b28 is lost"}]) is None
    assert told_session([{"role": "system", "content": line}]) is None


SUMMARY = "The user lists files in the harbour project.\nTwo tests fail in tests/test_copper.py."


def test_what_a_lone_question_quotes_is_known_by_its_exchanges() -> None:
    said_before = [USER, said("Sunny, 21 degrees.")]
    keys = set(echoes_of(said_before[:1], said_before[1], START))
    for quoting in (
        "[User]: What is the weather?\n\n[Assistant]: Sunny, 21 degrees.\n",
        "Title?\n<chat>\nUSER: What is  the weather?\nASSISTANT: Sunny, 21 degrees.\n</chat>",
        "Human: What is the weather?\nAI: Sunny, 21 degrees.\nHuman: And then?",
    ):
        found = [e for e in echoed([{"role": "user", "content": quoting}], START) if e.key in keys]
        assert [echo.kind for echo in found] == [EchoKind.QUOTE]
    for other in ("User: What is the weather?", "[Assistant]: Sunny, 21 degrees."):
        assert not [
            echo
            for echo in echoed([{"role": "user", "content": other}], START)
            if echo.kind is EchoKind.QUOTE
        ]


def test_who_quotes_a_session_is_linked_to_it_and_never_in_it() -> None:
    ask = request([{"role": "user", "content": "User: What is the weather?\nAssistant: a\nTitle?"}])
    [key] = [e.key for e in echoed(ask.messages, START) if e.kind is EchoKind.QUOTE]
    one = replace(turn(2, session=A), echo=key)
    found = decide(one, ask=ask)
    assert (found.session_id, found.parent, found.rule) == (None, None, "quotes")
    assert found.parent_session_id == A
    # Said in two sessions, it tells of neither.
    assert decide(one, replace(turn(2, session=B), echo=key), ask=ask).rule == "new"


@pytest.mark.parametrize(
    "opening",
    [
        f"The history was compacted into this summary:\n<summary>\n{SUMMARY}\n</summary>",
        f"<state_snapshot>{SUMMARY}</state_snapshot>",
        f"Summary so far: {SUMMARY}",
    ],
)
def test_a_history_that_opens_with_a_summary_goes_on_with_its_session(opening: str) -> None:
    asked: list[Message] = [{"role": "user", "content": "Summarise the conversation above."}]
    keys = set(echoes_of(asked, said(SUMMARY), START))
    ask = request([{"role": "user", "content": opening}, {"role": "user", "content": "Go on."}])
    [key, *_] = [
        echo.key
        for echo in echoed(ask.messages, START)
        if echo.kind is EchoKind.SUMMARY and echo.key in keys
    ]
    inside = replace(turn(2, session=A), echo=key, parent_id=UUID(int=9), parent_session_id=B)
    found = decide(inside, ask=ask)
    assert (found.session_id, found.parent, found.rule) == (A, None, "summary")
    assert found.branch_reason == "compacted"
    # A summary that was asked for beside the session leads back to that session.
    beside = replace(turn(2, session=NAMED), echo=key, parent_session_id=A)
    assert decide(beside, ask=ask).session_id == A
    # Equal summaries of two sessions tell of neither.
    assert decide(inside, replace(beside, parent_session_id=B), ask=ask).session_id is None


def test_a_summary_is_no_key_where_nobody_asked_for_one() -> None:
    assert not [key for key in echoes_of([USER], said(SUMMARY), START) if key.startswith("%")]


def test_a_short_order_takes_an_agent_with_instructions_of_its_own() -> None:
    order = call(name="ask_sub", arguments='{"input": "Z\\u00fcrich 1"}')
    keys = echoes_of([USER], said(None, tool_calls=[order]), START)
    [key] = [key for key in keys if key.startswith("<")]
    caller = replace(turn(2, session=A, system="main"), echo=key)
    for system, parent in (("sub", A), ("main", None)):
        ask = request(
            [{"role": "system", "content": system}, {"role": "user", "content": "Zürich 1"}]
        )
        assert decide(caller, ask=ask).parent_session_id == parent
    assert decide(replace(caller, continued=True), ask=ask).rule == "new"
