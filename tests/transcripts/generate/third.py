"""A third set of shapes: routers, prompts beside the line in twos, histories that keep little.

Written after the rules that the second set asked for, and before any was tried on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.transcripts.generate.stage import Stage
from tests.transcripts.generate.unseen import _JSON, _lone, _open, _over
from tests.transcripts.generate.wire import Entry, Replied, Returned, Said


def two_beside(stage: Stage) -> None:
    """A title and follow-ups, over the same history, by the same other instructions."""
    talk = _open(stage)
    for _ in range(3):
        talk.ask(stage.words())
        for asks in ("Name this chat in three words.", "Give three questions the user may ask."):
            _over(talk, asks, system="You assist a chat application.")


def json_beside(stage: Stage) -> None:
    """Labels as JSON, over the history and with the conversation's own instructions."""
    talk = _open(stage)
    for _ in range(3):
        talk.ask(stage.words())
        _over(talk, f"Label the last answer. {stage.words(2)}", extra={"response_format": _JSON})


def router(stage: Stage) -> None:
    """Before each turn a router reads the same messages under instructions of its own."""
    talk = _open(stage, tools=("look",))
    for number in range(4):
        question = stage.words()
        routes = {"system": "Name the department.", "tools": (), "extra": {"max_tokens": 5}}
        if number:
            _over(talk, question, Replied("billing"), **routes)
        else:
            _lone(stage, None, question, **routes)
        talk.ask(question)


def threads(stage: Stage) -> None:
    """Two threads of one bot with the same opening, each with several people's names."""
    first = stage.words()
    talks = [_open(stage), _open(stage)]
    for talk in talks:
        talk.ask(f"<@{talk.label}1> (10:00): {first}")
    for number in range(3):
        for talk in talks:
            talk.ask(f"<@{talk.label}{number}> (10:0{number}): {stage.words()}")


def passages(stage: Stage) -> None:
    """What was looked up is a user message of its own before the newest question only."""
    talk = _open(stage)
    for _ in range(4):
        talk.entries.append(Said(f"Passages:\n{stage.words(20)}"))
        talk.ask(stage.words())
        del talk.entries[-3]


def shortened(stage: Stage) -> None:
    """Replies are kept to their first sixty letters."""
    talk = _open(stage)
    for _ in range(4):
        said = talk.ask(stage.words(), Replied(f"{stage.words(25).capitalize()}."))
        talk.entries[-1] = Replied(f"{said.text[:60]}…")


def final_answers(stage: Stage) -> None:
    """Calls and results are dropped once there is an answer."""
    talk = _open(stage, tools=("look", "note"))
    for _ in range(3):
        talk.ask(stage.words(), talk.reply(calls=talk.calls("look")))
        talk.results(talk.reply(calls=talk.calls("note")))
        talk.results()
        kept: list[Entry] = []
        for entry in talk.entries:
            if isinstance(entry, Returned) or (isinstance(entry, Replied) and entry.calls):
                continue
            kept.append(entry)
        talk.entries = kept


def clock_first(stage: Stage) -> None:
    """The first message tells the time of each request."""
    talk = _open(stage)
    first = stage.words()
    talk.ask(f"Now: 10:00\n\n{first}")
    for number in range(1, 4):
        talk.entries[0] = Said(f"Now: 10:0{number}\n\n{first}")
        talk.ask(stage.words())


def same_answers(stage: Stage) -> None:
    """Three users with questions of their own get the same long answer; context was inside."""
    answer = Replied(f"{stage.words(20).capitalize()}.")
    talks = [_open(stage) for _ in range(3)]
    for talk in talks:
        one, two = f"{stage.words(3)} {talk.label}", stage.words(3)
        talk.ask(f"{one}\n<context>{stage.words(12)}</context>\n{two}", answer)
        talk.entries[-2] = Said(f"{one} {two}")
    for _ in range(2):
        for talk in talks:
            talk.ask(f"{stage.words()} {talk.label}")


def edits_beside(stage: Stage) -> None:
    """Two users of one key begin alike; one takes words back, both have prompts beside."""
    hello = stage.words()
    talks = [_open(stage), _open(stage)]
    for talk in talks:
        talk.ask(hello)
    one, other = talks
    for talk in talks:
        talk.ask(f"{stage.words()} {talk.label}")
        _over(talk, "Suggest what to say next.", system="You suggest.")
    mark = one.mark()
    one.ask(stage.words())
    discarded = one.last
    one.back_to(*mark)
    one.ask(stage.words(), discards=discarded)
    _over(other, "Suggest what to say next.", system="You suggest.")
    other.ask(stage.words())
    one.ask(stage.words())


THIRD: dict[str, Callable[[Stage], Any]] = {
    "two-beside": two_beside,
    "json-beside": json_beside,
    "router": router,
    "threads": threads,
    "passages": passages,
    "shortened": shortened,
    "final-answers": final_answers,
    "clock-first": clock_first,
    "same-answers": same_answers,
    "edits-beside": edits_beside,
}
