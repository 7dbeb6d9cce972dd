"""More conversations that no rule was made with: chat interfaces, voice, retrieval, guardrails.

Written before any rule was tried on them, after what such clients are known to send.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.transcripts.generate.stage import Stage, Talk
from tests.transcripts.generate.wire import Hand, Replied, Said

_JSON = {"type": "json_object"}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object"}},
}


def _open(stage: Stage, hand: Hand | None = None, **more: Any) -> Talk:
    fields: dict[str, Any] = {
        "headers": {"user-agent": "okhttp/4.12", "content-type": "application/json"},
        "system": "You are a helpful assistant of the harbour.",
        **more,
    }
    return Talk(stage, hand or Hand(), **fields)


def _lone(stage: Stage, talk: Talk | None, text: str, **more: Any) -> Replied:
    """One prompt by itself, about `talk` if there is one."""
    fields: dict[str, Any] = {"system": "", "kind": "side/unknown", **more}
    other = _open(stage, origin=talk.label if talk else "", **fields)
    return other.ask(text)


def _over(talk: Talk, text: str, reply: Replied | None = None, **more: Any) -> Replied:
    """A prompt behind the history of `talk`, which goes on without it."""
    other = talk.copy(kind="side/unknown", **more)
    other.entries = [*talk.entries, Said(text)]
    other._followed = {talk.last or 0: True}
    return other.send(reply, role="user")


def _told(talk: Talk, user: str = "USER", assistant: str = "ASSISTANT") -> str:
    lines = []
    for entry in talk.entries:
        if isinstance(entry, Said):
            lines.append(f"{user}: {entry.text}")
        elif isinstance(entry, Replied):
            lines.append(f"{assistant}: {entry.text.strip()}")
    return "\n".join(lines)


def interface_tasks(stage: Stage) -> None:
    """A web interface asks for a title and tags once, for follow-ups after each turn."""
    talk = _open(stage)
    for number in range(3):
        talk.ask(stage.words())
        history = f"### Chat History:\n<chat_history>\n{_told(talk)}\n</chat_history>"
        wanted = ["Suggest 3-5 relevant follow-up questions the user might ask next."]
        if number == 0:
            wanted.append("Generate a concise, 3-5 word title with an emoji for this chat.")
            wanted.append("Generate 1-3 broad tags for the themes of the chat history.")
        for task in wanted:
            _lone(stage, talk, f"### Task:\n{task}\n\n### Output:\nJSON\n\n{history}")


def interface_search(stage: Stage) -> None:
    """Search queries are made before each turn; what was found wraps the newest message only."""
    talk = _open(stage)
    for number in range(3):
        question = stage.words()
        history = f"<chat_history>\n{_told(talk)}\nUSER: {question}\n</chat_history>"
        task = "### Task:\nAnalyze the chat history and write search queries, as JSON."
        _lone(stage, talk if number else None, f"{task}\n\n{history}")
        wrapped = "### Task:\nRespond to the user query using the provided context.\n\n"
        talk.ask(f"{wrapped}<context>\n{stage.words(20)}\n</context>\n\n{question}")
        talk.entries[-2] = Said(question)


def chat_title(stage: Stage) -> None:
    """A title is asked for with the first exchange written out; the chat goes on."""
    talk = _open(stage)
    talk.ask(stage.words())
    asks = "Provide a concise, 5-word-or-less title for the conversation."
    _lone(stage, talk, f"{asks}\n\nConversation:\n{_told(talk, 'User', 'AI')}")
    talk.ask(stage.words())
    talk.ask(stage.words())


def suggestions_by_tool(stage: Stage) -> None:
    """After each turn a forced call of another tool suggests what to say next."""
    talk = _open(stage, tools=("look", "note"))
    for _ in range(3):
        talk.ask(stage.words(), talk.reply(calls=talk.calls("look")))
        talk.results()
        made = talk.reply(calls=talk.calls("suggest"))
        extra = {"tool_choice": {"type": "function", "function": {"name": "suggest"}}}
        _over(talk, "Suggest what I could say next.", made, tools=("suggest",), extra=extra)


def unmarked_suggestions(stage: Stage) -> None:
    """Quick replies are asked for with the same instructions, and no mark whatever."""
    talk = _open(stage)
    for _ in range(4):
        talk.ask(stage.words())
        _over(talk, "Write three short replies that I could give to this, one a line.")


def twins_with_suggestions(stage: Stage) -> None:
    """Two users of one key begin with the same words and get the same reply, and are asked about.

    Which of the two a request means is open until their words differ.
    """
    first = stage.words()
    talks = [_open(stage), _open(stage)]
    for talk in talks:
        talk.ask(first, Replied("The harbour opens at six."))
    for talk in talks:
        talk.ask(f"{stage.words()} {talk.label}")
    for _ in range(2):
        for talk in talks:
            _over(talk, "Suggest three follow-up questions.", system="You write suggestions.")
        for talk in reversed(talks):
            talk.ask(stage.words())


def short_replies(stage: Stage) -> None:
    """Two users of one key whose context is dropped later, and whose replies are all the same."""
    talks = [_open(stage), _open(stage)]
    for _ in range(3):
        for talk in talks:
            question = f"{stage.words()} {talk.label}"
            talk.ask(f"<documents>\n{stage.words(20)}\n</documents>\n{question}", Replied("Done."))
            talk.entries[-2] = Said(question)


def structured(stage: Stage) -> None:
    """Every reply is JSON by a schema, and the conversation goes on all the same."""
    talk = _open(stage, extra={"response_format": _SCHEMA})
    for _ in range(4):
        talk.ask(stage.words(), Replied(json.dumps({"answer": stage.words()})))


def asked_again(stage: Stage) -> None:
    """A reply that does not validate is sent back with the error."""
    talk = _open(stage, system="", extra={"response_format": _JSON})
    talk.ask(stage.words(), Replied('{"days": "four"}'))
    talk.ask("Validation error: days must be a number. Correct it.", Replied('{"days": 4}'))
    other = _open(stage, system="", extra={"response_format": _JSON})
    other.ask(stage.words(), Replied('{"days": 5}'))


def interrupted_voice(stage: Stage) -> None:
    """A caller interrupts: of the reply only what was spoken stays in the history."""
    talk = _open(stage)
    for _ in range(4):
        said = talk.ask(stage.words(), Replied(f"{stage.words(14).capitalize()}."))
        spoken = " ".join(said.text.split()[:9])
        talk.entries[-1] = Replied(spoken)


def early_voice(stage: Stage) -> None:
    """A reply is begun before the caller has ended the sentence, and given up."""
    talk = _open(stage)
    talk.ask(stage.words())
    for _ in range(3):
        mark = talk.mark()
        sentence = stage.words(8)
        half = talk.copy(kind="main/side/unknown")
        half.entries = [*talk.entries, Said(" ".join(sentence.split()[:4]))]
        half._followed = {talk.last or 0: True}
        half.send(role="user", left=True)
        talk.back_to(*mark)
        talk.ask(sentence)


def greeting(stage: Stage) -> None:
    """Each chat opens with the same words of the assistant's; three users at once."""
    hello = Replied("Welcome to the harbour. How can I help?")
    talks = [_open(stage, prelude=(hello,)) for _ in range(3)]
    for _ in range(3):
        for talk in talks:
            talk.ask(f"{stage.words()} {talk.label}")


def moving_files(stage: Stage) -> None:
    """A map before the history and files behind it, both with a made-up answer, change each time.

    The question stands last; only questions and replies stay.
    """
    talk = _open(stage)
    history: list[Any] = []
    for number in range(4):
        question = stage.words()
        talk.entries = [
            Said(f"Here are summaries of files:\n{stage.words(12)}"),
            Replied("Ok, I won't change those files without asking."),
            *history,
            Said(f"These files were added:\n{stage.words(20)}\nrevision {number}"),
            Replied("Ok, any changes I propose will be to those files."),
        ]
        said = talk.ask(question)
        history += [Said(question), said]


def middle_dropped(stage: Stage) -> None:
    """Tools by text; when it grows long the first exchange stays and a middle part is dropped."""
    talk = _open(stage, system="Use <tools> by text.")
    talk.ask(f"<task>{stage.words(8)}</task>\n<environment_details>1</environment_details>")
    for number in range(6):
        talk.ask(
            f"[look for '{stage.words(1)}'] Result:\n{stage.words(9)}\n"
            f"<environment_details>{number + 2}</environment_details>"
        )
        if number == 3:
            del talk.entries[2:6]


def condensed_middle(stage: Stage) -> None:
    """A lone call sums up the middle, which then stands in its place as a user's message."""
    talk = _open(stage)
    for _ in range(4):
        talk.ask(stage.words())
    summary = Replied(f"User goal: {stage.words(6)}.\nProgress: {stage.words(9)}.")
    other = _open(stage, origin=talk.label, kind="side/unknown", system="")
    other.ask(f"Maintain a summary of these events.\n\n{_told(talk, 'User', 'Assistant')}", summary)
    talk.entries[1:6] = [Said(f"<summary>\n{summary.text}\n</summary>")]
    talk.ask(stage.words())
    talk.ask(stage.words())


def remembered(stage: Stage) -> None:
    """Facts are drawn from each exchange by a call beside it, and put into the system prompt."""
    talk = _open(stage)
    for number in range(3):
        talk.ask(stage.words())
        last = _last_exchange(talk)
        told = _told(last, "user", "assistant")
        _lone(
            stage, talk, f"Input:\n{told}", system="You organise facts about people, as JSON.",
            extra={"response_format": _JSON},
        )  # fmt: skip
        talk.system = f"You are a helpful assistant.\nMemories: {number} {stage.words()}"


def _last_exchange(talk: Talk) -> Talk:
    """The same conversation with its last exchange only."""
    other = replace(talk)
    other.entries = talk.entries[-2:]
    return other


def guarded(stage: Stage) -> None:
    """Before each turn a call classifies the user's words alone; after it one checks the reply."""
    talk = _open(stage, tools=("look",))
    for _ in range(3):
        question = stage.words()
        guard = "Is the message below about the harbour? Answer yes or no."
        _lone(stage, None, question, system=guard, extra={"max_tokens": 1})
        said = talk.ask(question)
        check = "Does the text below give away secrets? Answer yes or no."
        _lone(stage, None, said.text, system=check, extra={"max_tokens": 1})


def citations(stage: Stage) -> None:
    """Marks of sources and links are taken out of replies before they are kept."""
    talk = _open(stage)
    for _ in range(4):
        one, two = stage.words(5), stage.words(5)
        talk.ask(stage.words(), Replied(f"{one} [1], {two} [2][3]."))
        talk.entries[-1] = Replied(f"{one}, {two}.")


def rephrased(stage: Stage) -> None:
    """Before each turn but the first the question is made to stand alone, over the history."""
    talk = _open(stage)
    talk.ask(stage.words())
    for _ in range(3):
        question = stage.words()
        asks = "Rephrase the follow up question below to be a standalone question."
        _over(talk, f"{asks}\n{question}", system="")
        talk.ask(question)


UNSEEN: dict[str, Callable[[Stage], None]] = {
    "interface-tasks": interface_tasks,
    "interface-search": interface_search,
    "chat-title": chat_title,
    "suggestions-by-tool": suggestions_by_tool,
    "unmarked-suggestions": unmarked_suggestions,
    "twins-with-suggestions": twins_with_suggestions,
    "short-replies": short_replies,
    "structured": structured,
    "asked-again": asked_again,
    "interrupted-voice": interrupted_voice,
    "early-voice": early_voice,
    "greeting": greeting,
    "moving-files": moving_files,
    "middle-dropped": middle_dropped,
    "condensed-middle": condensed_middle,
    "remembered": remembered,
    "guarded": guarded,
    "citations": citations,
    "rephrased": rephrased,
}
