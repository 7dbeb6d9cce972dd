"""Conversations of shapes that no rule was made with, to see how rules do on what they never saw.

They were written after the rules and are not to be fitted: a shape that a rule is made for later
moves to `scenes`, and another takes its place here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.transcripts.generate.stage import Stage, Talk
from tests.transcripts.generate.wire import Call, Hand, Replied, Returned, Said


def _open(stage: Stage, hand: Hand | None = None, **more: Any) -> Talk:
    fields: dict[str, Any] = {
        "headers": {"user-agent": "python-httpx/0.28", "content-type": "application/json"},
        "system": "You answer for the harbour office.",
        **more,
    }
    return Talk(stage, hand or Hand(), **fields)


def reminders(stage: Stage) -> None:
    """A reminder stands behind the newest user message, and is taken away from older ones."""
    talk = _open(stage)
    for number in range(4):
        question = stage.words()
        talk.ask(f"{question}\n<reminder>{number} files are open</reminder>")
        talk.entries[-2] = Said(question)


def retrieval(stage: Stage) -> None:
    """What was looked up stands before the newest question only."""
    talk = _open(stage)
    for _ in range(4):
        question = stage.words()
        talk.ask(f"Context:\n{stage.words(20)}\n\nQuestion: {question}")
        talk.entries[-2] = Said(question)


def cleared(stage: Stage) -> None:
    """Old results of tools are cleared away."""
    talk = _open(stage, tools=("look", "note"))
    talk.ask(stage.words(), talk.reply(calls=talk.calls("look")))
    for _ in range(4):
        talk.results(talk.reply("On.", calls=talk.calls("look", "note")))
        kept = [index for index, e in enumerate(talk.entries) if isinstance(e, Returned)]
        for index in kept[:-2]:
            entry = talk.entries[index]
            assert isinstance(entry, Returned)
            talk.entries[index] = replace(entry, text="[cleared]")
    talk.results()


def hand_off(stage: Stage) -> None:
    """Another agent takes over: its own instructions and tools, the same history."""
    talk = _open(stage, tools=("transfer_to_billing",))
    talk.ask(stage.words(), talk.reply(calls=talk.calls("transfer_to_billing")))
    talk.system, talk.tools = "You do the bills.", ("invoice", "refund")
    talk.results()
    talk.ask(stage.words(), talk.reply(calls=talk.calls("invoice")))
    talk.results()


def team(stage: Stage) -> None:
    """Two agents share one transcript, each with the other's words as a user's."""
    task = stage.words(8)
    one = _open(stage, system="You write.", entries=[Said(task)])
    other = _open(stage, system="You review.", entries=[Said(task)])
    said = one.send(role="user")
    for _ in range(3):
        said = other.ask(said.text)
        said = one.ask(said.text)


def own_ids(stage: Stage) -> None:
    """Call ids are the client's own, and arguments come back in another order."""
    talk = _open(stage, Hand(arguments="sorted", empty="text"), tools=("look", "note"))
    for _ in range(3):
        talk.ask(stage.words(), talk.reply(calls=talk.calls("look", "note")))
        said = talk.entries[-1]
        assert isinstance(said, Replied)
        talk.entries[-1] = replace(said, calls=tuple(_renamed(stage, call) for call in said.calls))
        talk.results()


def _renamed(stage: Stage, call: Call) -> Call:
    return replace(call, id=f"tc-{stage.uuid()}")


def no_markdown(stage: Stage) -> None:
    """Emphasis is taken out of replies before they are kept."""
    talk = _open(stage)
    for _ in range(4):
        first, *rest = stage.words(6).split()
        said = talk.ask(stage.words(), Replied(f"**{first}** {' '.join(rest)}."))
        talk.entries[-1] = Replied(said.text.replace("*", ""))


def five_users(stage: Stage) -> None:
    """Five users of one key ask the same, one after another, in any order."""
    talks = [_open(stage) for _ in range(5)]
    for _ in range(3):
        question = stage.words()
        for talk in stage.random.sample(talks, len(talks)):
            talk.ask(question)


def group(stage: Stage) -> None:
    """The same request several times on purpose; one of the replies is continued."""
    question = stage.words()
    talks = [_open(stage) for _ in range(4)]
    for talk in talks:
        talk.ask(question)
    chosen = stage.random.choice(talks)
    chosen.ask(stage.words())
    chosen.ask(stage.words())


def clock(stage: Stage) -> None:
    """The system prompt tells the time; the user goes back and asks otherwise."""
    talk = _open(stage, system="It is 10:00.")
    talk.ask(stage.words())
    mark = talk.mark()
    talk.system = "It is 10:01."
    talk.ask(stage.words())
    discarded = talk.last
    talk.back_to(*mark)
    talk.system = "It is 10:02."
    talk.ask(stage.words(), discards=discarded)
    talk.system = "It is 10:03."
    talk.ask(stage.words())


def pinned_head(stage: Stage) -> None:
    """The first message and the last four are sent, whatever was between them."""
    talk = _open(stage)
    for _ in range(6):
        talk.ask(stage.words())
        if len(talk.entries) > 5:
            del talk.entries[1 : len(talk.entries) - 4]


def growing_tools(stage: Stage) -> None:
    """Tools are found while the conversation goes on."""
    talk = _open(stage, tools=("find_tools",))
    talk.ask(stage.words(), talk.reply(calls=talk.calls("find_tools")))
    for number in range(3):
        talk.tools = (*talk.tools, f"found_{number}")
        talk.results(talk.reply("Now.", calls=talk.calls(talk.tools[-1])))
    talk.results()


def json_summary(stage: Stage) -> None:
    """A summary of messages given as JSON, and a system prompt that opens the rest with it."""
    talk = _open(stage)
    question = stage.words()
    said = talk.ask(question)
    told = [("user", question), ("assistant", said.text.strip())]
    dumped = json.dumps([{"role": role, "content": text} for role, text in told])
    other = _open(stage, system="Summarise.", origin=talk.label, kind="side/unknown")
    summary = other.ask(dumped, Replied(f"They spoke of {stage.words(8)}."))
    talk.back_to(0, None)
    talk.system += f"\nEarlier conversation, summarised: {summary.text}"
    talk.ask(stage.words())
    talk.ask(stage.words())


def begun_again(stage: Stage) -> None:
    """A client with a session of its own starts its history over, twice."""
    talk = _open(stage)
    talk.headers["x-session-id"] = f"chat {stage.words(2)}"
    for _ in range(3):
        talk.back_to(0, None)
        talk.ask(stage.words())
        talk.ask(stage.words())


def side_chat(stage: Stage) -> None:
    """After each turn another prompt asks for three follow-ups over the same history."""
    talk = _open(stage)
    for _ in range(3):
        talk.ask(stage.words())
        other = talk.copy(kind="side/unknown", system="Suggest three follow-up questions as JSON.")
        other.entries = [*talk.entries, Said("What could the user ask next?")]
        other._followed = {talk.last or 0: True}
        other.send(role="user")


def long(stage: Stage) -> None:
    """Thirty steps of a tool loop."""
    talk = _open(stage, tools=("look",))
    talk.ask(stage.words(), talk.reply(calls=talk.calls("look")))
    for _ in range(30):
        talk.results(talk.reply(calls=talk.calls("look")))
    talk.results()


HELD_OUT: dict[str, Callable[[Stage], None]] = {
    "reminders": reminders,
    "retrieval": retrieval,
    "cleared": cleared,
    "hand-off": hand_off,
    "team": team,
    "own-ids": own_ids,
    "no-markdown": no_markdown,
    "five-users": five_users,
    "group": group,
    "clock": clock,
    "pinned-head": pinned_head,
    "growing-tools": growing_tools,
    "json-summary": json_summary,
    "begun-again": begun_again,
    "side-chat": side_chat,
    "long": long,
}
