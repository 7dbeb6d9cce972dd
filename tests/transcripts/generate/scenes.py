"""What clients do: one scene for each kind of conversation."""

from __future__ import annotations

from collections.abc import Callable

from tests.transcripts.generate.families import Family, _metadata
from tests.transcripts.generate.stage import Stage, Talk
from tests.transcripts.generate.wire import Replied, Said

Scene = Callable[[Family, Stage], None]


def plain(family: Family, stage: Stage) -> None:
    talk = family.open(stage, tools=family.toolless)
    for _ in range(stage.random.randint(2, 4)):
        talk.ask(stage.words())


def tools(family: Family, stage: Stage) -> None:
    talk = family.open(stage)
    for _ in range(2):
        talk.ask(stage.words(), talk.reply(calls=talk.calls(family.tools[0])))
        talk.results(talk.reply("Next.", calls=talk.calls(family.tools[1])))
        talk.results()


def parallel(family: Family, stage: Stage) -> None:
    talk = family.open(stage)
    talk.ask(stage.words(), talk.reply(calls=talk.calls(*family.tools)))
    talk.results(reverse=family.hand.dialect == "messages")
    talk.ask(stage.words(), talk.reply("Both.", calls=talk.calls(*family.tools, family.tools[0])))
    talk.results()


def stream(family: Family, stage: Stage) -> None:
    talk = family.open(stage)
    talk.extra = {**talk.extra, "stream": True}
    talk.ask(stage.words(), talk.reply(calls=talk.calls(family.tools[0])))
    talk.results()
    talk.ask(stage.words())


def reasoning(family: Family, stage: Stage) -> None:
    talk = family.open(stage)
    thought = talk.reply(calls=talk.calls(family.tools[0]), reasoning=f"Hm, {stage.words()}.")
    talk.ask(stage.words(), thought)
    talk.results(talk.reply(f"{stage.words()}.", reasoning=f"So {stage.words()}."))
    talk.ask(stage.words())


def subagents(family: Family, stage: Stage) -> None:
    """One agent is called, then two at once."""
    tool, argument = family.delegate
    talk = family.open(stage, tools=(*family.tools, tool))
    talk.ask(stage.words())
    for count in (1, 2):
        tasks = [f"Look for {stage.words(4)}" for _ in range(count)]
        calls = [stage.call(talk.prefix, tool, {argument: task, "n": 1}) for task in tasks]
        if family.hand.first_call_only:
            tasks = tasks[:1]
        talk.ask(stage.words(), talk.reply(calls=calls))
        for task in tasks:
            agent = family.agent(stage, talk)
            agent.ask(task, agent.reply(calls=agent.calls(family.tools[0])))
            agent.results()
        talk.results()


def title(family: Family, stage: Stage) -> None:
    """A title beside the conversation, as this client asks for it; some do before they begin."""
    talk = family.open(stage)
    first = stage.words()
    if family.title == "claude":
        _beside(talk, "Generate a concise, sentence-case title (3-7 words).", first)
    elif family.title == "opencode":
        _beside(talk, "You are a title generator. You output ONLY a thread title.", first, "small")
    said = talk.ask(first)
    if family.title == "quote":
        asks = (
            f"Write a title of five words for this chat.\n\nUser: {first}\nAssistant: {said.text}"
        )
        other = family.open(stage, tools=(), origin=talk.label, kind="side")
        other.system = ""
        other.ask(asks)
    elif family.title == "lone":
        other = family.open(stage, tools=(), kind="side/unknown")
        other.system = "Give a name of two or three words to what the user wants."
        other.opening = ""
        other.ask(first)
    talk.ask(stage.words())


def _beside(talk: Talk, system: str, text: str, model: str = "") -> None:
    other = talk.copy(kind="side", tools=(), system=system, last=None)
    other.model = model or talk.model
    other.ask(text)


def compaction(family: Family, stage: Stage) -> None:
    """The history is replaced by a summary, and the conversation goes on."""
    talk = family.open(stage)
    talk.ask(stage.words(), talk.reply(calls=talk.calls(family.tools[0])))
    talk.results()
    question = stage.words()
    said = talk.ask(question)
    summary = Replied(f"1. The user asked for {stage.words(6)}.\n2. Found: {stage.words(8)}.")
    _COMPACT[family.compaction](family, talk, summary, [(question, said.text)])
    talk.ask(stage.words(), talk.reply(calls=talk.calls(family.tools[0])))
    talk.results()


def _codex(family: Family, talk: Talk, summary: Replied, _: object) -> None:
    kind = {"x-codex-turn-metadata": _metadata("compaction")}
    _summed_up(talk, "You are performing a CONTEXT CHECKPOINT COMPACTION.", summary, (), kind)
    talk.headers["x-codex-window-id"] = talk.headers["x-codex-window-id"].replace(":0", ":1")
    _start_over(talk, f"Another model began this and left a summary:\n{summary.text}")


def _claude(family: Family, talk: Talk, summary: Replied, _: object) -> None:
    asks = (
        "CRITICAL: Respond with TEXT ONLY. Your task is to create a detailed summary of the"
        " conversation so far."
    )
    _summed_up(talk, asks, summary, talk.tools)
    _start_over(talk, f"This session is continued. It is summarized below:\n{summary.text}")


def _opencode(family: Family, talk: Talk, summary: Replied, _: object) -> None:
    _summed_up(talk, "Provide a detailed summary of our conversation above.", summary, ())
    _start_over(talk, "What did we do so far?", summary)


def _qwen(family: Family, talk: Talk, summary: Replied, _: object) -> None:
    whole, system = Replied(f"<state_snapshot>{summary.text}</state_snapshot>"), talk.system
    talk.system = "You are the component that summarizes internal chat history into a structure."
    stream = talk.extra.pop("stream")
    _summed_up(talk, "Reason in your scratchpad, then write the <state_snapshot>.", whole, ())
    talk.system, talk.extra["stream"] = system, stream
    thanks = Replied("Got it. Thanks for the additional context!")
    _start_over(talk, whole.text, thanks)


def _pi(family: Family, talk: Talk, summary: Replied, told: list[tuple[str, str]]) -> None:
    system = "You are a context summarization assistant. Do not go on with the conversation."
    lines = "\n\n".join(f"[User]: {ask}\n\n[Assistant]: {reply}" for ask, reply in told)
    _quoted(talk, system, f"<conversation>\n{lines}\n</conversation>\nSum up.", summary)
    opening = "The history before this point was compacted into the following summary:"
    _start_over(talk, f"{opening}\n\n<summary>\n{summary.text}\n</summary>")


def _langgraph(family: Family, talk: Talk, summary: Replied, told: list[tuple[str, str]]) -> None:
    lines = "\n".join(f"Human: {ask}\nAI: {reply}" for ask, reply in told)
    role = "<role>\nContext Extraction Assistant\n</role>"
    asks = f"{role}\n\n<messages>\nMessages to summarize:\n{lines}\n</messages>"
    _quoted(talk, "", asks, summary)
    _start_over(talk, f"Here is a summary of the conversation to date:\n\n{summary.text}")


def _app(family: Family, talk: Talk, summary: Replied, told: list[tuple[str, str]]) -> None:
    """An application of its own making: a summariser, then the summary as the first message."""
    lines = "\n".join(f"User: {ask}\nAssistant: {reply}" for ask, reply in told)
    _quoted(talk, "You summarise conversations.", lines, summary)
    _start_over(talk, f"Summary of the conversation so far: {summary.text}")


_COMPACT: dict[str, Callable[[Family, Talk, Replied, list[tuple[str, str]]], None]] = {
    "codex": _codex,
    "claude": _claude,
    "opencode": _opencode,
    "qwen": _qwen,
    "pi": _pi,
    "langgraph": _langgraph,
    "app": _app,
}


def _summed_up(
    talk: Talk, asks: str, summary: Replied, tools: tuple[str, ...],
    headers: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """The summary is asked for at the end of the history itself."""
    kept, talk.tools = talk.tools, tools
    talk.entries.append(Said(asks))
    talk.send(summary, role="-", kind="side", headers=headers)
    talk.tools = kept


def _quoted(talk: Talk, system: str, asks: str, summary: Replied) -> None:
    """The summary is asked for beside it, in a message that quotes the history."""
    other = talk.copy(
        label=talk.stage.session(), origin=talk.label, kind="side", tools=(), system=system,
        last=None, prelude=(),
    )  # fmt: skip
    other.ask(asks, summary)


def _start_over(talk: Talk, opening: str, reply: Replied | None = None) -> None:
    talk.back_to(len(talk.prelude), None)
    talk.entries.append(Said(opening + talk.signature))
    if reply:
        talk.entries.append(reply)


def edited(family: Family, stage: Stage) -> None:
    """The user goes back one turn, later two turns, and asks something else; then regenerates."""
    talk = family.open(stage, tools=family.toolless)
    talk.ask(stage.words())
    one = talk.mark()
    talk.ask(stage.words())
    discarded = talk.last
    talk.back_to(*one)
    talk.ask(stage.words(), discards=discarded)
    two = talk.mark()
    talk.ask(stage.words())
    talk.ask(stage.words())
    discarded = talk.last
    talk.back_to(*two)
    talk.ask(stage.words(), discards=discarded)
    three = talk.mark()
    again = stage.words()
    talk.ask(again)
    talk.back_to(*three)
    talk.ask(again)
    talk.ask(stage.words())


def retries(family: Family, stage: Stage) -> None:
    """Replies that never arrive, at the first turn and later; and one that was sent in vain."""
    talk = family.open(stage)
    once = {"x-stainless-retry-count": "1"} if family.stainless else {}
    talk.ask(stage.words(), left=True)
    talk.send(role="user", again=True, headers=once)
    talk.ask(stage.words(), talk.reply(calls=talk.calls(family.tools[0])))
    talk.results(left=True)
    talk.send(role="tool", again=True, headers=once)
    if family.stainless:
        mark = talk.mark()
        question = stage.words()
        talk.ask(question)
        talk.back_to(*mark)
        talk.entries.append(Said(question))
        talk.send(role="user", again=True, headers=once)
    talk.ask(stage.words())


def interleaved(family: Family, stage: Stage) -> None:
    """Two users of one key who begin with the same words and go on with the same words."""
    talks = [family.open(stage), family.open(stage)]
    for words in (stage.words(), stage.words(), stage.words()):
        order = talks if stage.random.random() < 0.5 else talks[::-1]
        for talk in order:
            talk.ask(words, talk.reply(calls=talk.calls(family.tools[0])))
        for talk in order[::-1]:
            talk.results()


SCENES: dict[str, Scene] = {
    "plain": plain,
    "tools": tools,
    "parallel": parallel,
    "stream": stream,
    "reasoning": reasoning,
    "subagents": subagents,
    "title": title,
    "compaction": compaction,
    "edited": edited,
    "retries": retries,
    "interleaved": interleaved,
}
