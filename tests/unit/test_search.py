"""Looking for a few keys first decides what looking for all of them would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.replay import key
from gateway.errors import StoreUnavailable
from gateway.pipeline.search import Found, Search
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
    NamedSession,
    chain,
    chained,
    echoed,
    echoes_of,
    head_hash,
    prefixes,
    request_hash,
    resolve,
    retried,
    seed,
)
from gateway.store.turns import TurnStore
from gateway.store.wanted import Wanted

TENANT = UUID(int=1)
PRINCIPAL = key(TENANT)
START = seed(PRINCIPAL.key_id, "m")
NOW = 1000.0

WORDS = (
    "hello",
    "tell me about the ships that sail to the island",
    "and which of them carries the most passengers in summer",
    "suggest three follow-up questions about this conversation",
)
REPLIES = (
    "yes",
    "Two ships sail to the island: the Aurora, every morning, and the Borealis, on Sundays only.",
    "The Aurora takes nine hundred passengers, the Borealis four hundred and some cars as well.",
)
SYSTEMS = (None, "You are a travel agent.", "You write follow-up questions.")


@dataclass
class Stored:
    """Turns, each with its keys, as Postgres would find them: once by every key that is asked."""

    turns: list[tuple[Candidate, tuple[str, ...]]] = field(default_factory=list)
    asked: list[Wanted] = field(default_factory=list)
    away: bool = False

    async def find_candidates(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        self.asked.append(wanted)
        if self.away:
            raise StoreUnavailable("away")
        return self.recent_candidates(tenant_id, wanted)

    def recent_candidates(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        assert tenant_id == TENANT
        found: list[Candidate] = []
        for turn, keys in self.turns:
            if turn.chain_hash in wanted.chains:
                found.append(turn)
            found += [replace(turn, echo=key) for key in wanted.echoes if key in keys]
            if turn.request_hash == wanted.request and turn.created_at >= wanted.since:
                found.append(turn)
            if turn.turn_id == wanted.previous:
                found.append(turn)
        return sorted(found, key=lambda one: (-one.message_count, -one.turn_id.int))

    def say(
        self, asked: TurnRequest, reply: Message, session: UUID, parent: Candidate | None
    ) -> Candidate:
        """Store a turn; its parent has been continued then."""
        number = len(self.turns) + 1
        messages = asked.messages
        head = head_hash(messages, asked.tools)
        turn = Candidate(
            turn_id=UUID(int=1000 + number),
            session_id=session,
            lineage_id=PRINCIPAL.lineage_id,
            parent_id=parent.turn_id if parent else None,
            chain_hash=chained(chain(messages, START)[-1], reply),
            depth=0,
            message_count=len(messages) + 1,
            kind=TurnKind.MAIN,
            tools_hash=head,
            finish_reason=FinishReason.STOP,
            continued=False,
            created_at=NOW - 500 + number,
            request_hash=request_hash(messages, asked.tools, START),
            delivered=True,
        )
        self.turns.append((turn, echoes_of(messages, reply, START, head)))
        if parent is not None:
            self.turns = [
                (replace(one, continued=True) if one.turn_id == parent.turn_id else one, keys)
                for one, keys in self.turns
            ]
        return turn


def request(messages: Sequence[Message], **more: Any) -> TurnRequest:
    return TurnRequest(
        dialect="openai_chat", model="m", messages=tuple(messages), sampling=Sampling(), **more
    )


@st.composite
def replies(draw: st.DrawFn) -> Message:
    text = draw(st.sampled_from(REPLIES))
    if draw(st.integers(0, 3)):
        return {"role": "assistant", "content": text}
    id_ = f"call_{draw(st.integers(0, 5)):024x}"
    call = {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def following(reply: Message, words: str) -> Message:
    calls = reply.get("tool_calls")
    if calls:
        return {"role": "tool", "tool_call_id": calls[0]["id"], "content": words}
    return {"role": "user", "content": words}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Stored, TurnRequest, NamedSession | None]:
    """Some conversations that share words, and a request that goes on from one of them."""
    stored = Stored()
    histories: list[list[Message]] = []
    for number in range(draw(st.integers(1, 4))):
        session = UUID(int=10 + number)
        system = draw(st.sampled_from(SYSTEMS))
        messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": draw(st.sampled_from(WORDS))})
        parent: Candidate | None = None
        for _ in range(draw(st.integers(1, 4))):
            reply = draw(replies())
            parent = stored.say(request(messages), reply, session, parent)
            histories.append([*messages, reply])
            messages = [*messages, reply, following(reply, draw(st.sampled_from(WORDS)))]
    history = list(draw(st.sampled_from(histories)))
    change = draw(st.sampled_from(("none", "none", "head", "reply", "system", "dropped")))
    if change == "head":
        history = history[-2:]
    elif change == "reply":
        at = next(i for i, one in enumerate(history) if one["role"] == "assistant")
        history[at] = {"role": "assistant", "content": draw(st.sampled_from(REPLIES))}
    elif change == "system":
        history.insert(0, {"role": "system", "content": "Be brief."})
    elif change == "dropped":
        history = [*history[:-1], {"role": "assistant", "content": "put into its mouth"}]
    asked = request([*history, following(history[-1], draw(st.sampled_from(WORDS)))])
    names = st.sampled_from((None, None, NamedSession(id=None), NamedSession(id=UUID(int=10))))
    return stored, asked, draw(names)


def decided_from_all(stored: Stored, asked: TurnRequest, named: NamedSession | None) -> Resolution:
    messages = asked.messages
    head, digest = head_hash(messages, asked.tools), request_hash(messages, asked.tools, START)
    found, echoes = prefixes(messages, START), echoed(messages, START, head)
    wanted = Wanted(
        chains=[prefix.hash for prefix in found],
        echoes=[echo.key for echo in echoes],
        request=digest,
        since=NOW - 600,
    )
    candidates = stored.recent_candidates(TENANT, wanted)
    attempts = [one for one in candidates if named is None or one.session_id == named.id]
    return resolve(
        asked,
        found=found,
        named=named,
        candidates=candidates,
        echoes=echoes,
        retry=retried(asked, digest, attempts, NOW),
        head=head,
    )


async def search(stored: Stored, asked: TurnRequest, named: NamedSession | None = None) -> Found:
    return await Search(cast("TurnStore", stored), PRINCIPAL, asked, NOW).found(named)


@given(worlds())
@settings(max_examples=300)
async def test_a_few_keys_decide_what_all_would(
    world: tuple[Stored, TurnRequest, NamedSession | None],
) -> None:
    stored, asked, named = world
    found = await search(stored, asked, named)
    assert found.resolution == decided_from_all(stored, asked, named)


def conversation() -> tuple[Stored, list[Message], Candidate]:
    stored = Stored()
    ask: Message = {"role": "user", "content": WORDS[1]}
    reply: Message = {"role": "assistant", "content": REPLIES[1]}
    turn = stored.say(request([ask]), reply, UUID(int=10), None)
    return stored, [ask, reply], turn


async def test_what_goes_on_from_its_own_reply_is_looked_for_once_by_few_keys() -> None:
    stored, history, turn = conversation()
    asked = request([*history, {"role": "user", "content": WORDS[2]}])
    found = await search(stored, asked)
    assert found.resolution.parent is not None
    assert found.resolution.parent.turn_id == turn.turn_id
    (wanted,) = stored.asked
    assert wanted.chains == [turn.chain_hash]
    assert not any(key.startswith("~") for key in wanted.echoes)


async def test_a_rewritten_history_is_looked_for_by_all_that_is_left_of_it() -> None:
    stored, history, turn = conversation()
    rewritten = {"role": "assistant", "content": REPLIES[1].replace(":", " **are**")}
    spaced = {"role": "assistant", "content": f"**{REPLIES[1]}**"}
    asked = request([history[0], spaced, {"role": "user", "content": WORDS[2]}])
    found = await search(stored, asked)
    assert found.resolution.rule == "outline"
    assert found.resolution.parent is not None
    assert found.resolution.parent.turn_id == turn.turn_id
    near, whole = stored.asked
    assert set(near.echoes) < set(whole.echoes)
    other = request([history[0], rewritten, {"role": "user", "content": WORDS[2]}])
    assert (await search(stored, other)).resolution.parent is None


async def test_a_first_request_is_looked_for_once() -> None:
    stored, _, _ = conversation()
    found = await search(stored, request([{"role": "user", "content": WORDS[2]}]))
    assert found.resolution.rule == "new"
    assert len(stored.asked) == 1


async def test_postgres_that_does_not_answer_is_asked_once() -> None:
    stored, history, turn = conversation()
    stored.away = True
    spaced = {"role": "assistant", "content": f"**{REPLIES[1]}**"}
    asked = request([history[0], spaced, {"role": "user", "content": WORDS[2]}])
    found = await search(stored, asked)
    assert found.resolution.parent is not None
    assert found.resolution.parent.turn_id == turn.turn_id
    assert len(stored.asked) == 1
