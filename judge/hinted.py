"""The hinted prompt, made in the token domain.

The hint stands at the end of the conversation's last user message. Only its own ids are new: they
are put into the ids that the engine saw, at the place where that message ends, so that whatever
else stands in the prompt (earlier replies as they were sampled, what a template drops or adds
today) is the same for the teacher as it was for the student.

    recorded prompt   … <user> Where is Canberra? <end> <assistant>
    hinted prompt     … <user> Where is Canberra? ⏎⏎ A hint …: Name the country. <end> <assistant>

Where that place cannot be found in the recorded ids, the hinted conversation is rendered in full.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import JudgeError
from gateway.records import Lesson, Message
from gateway.tokens.renderer import Renderer, common_prefix
from judge.fences import plain

_HEADING = "A hint for this answer:"

#: Ids before the end of the message by which its place is found, the surest first.
_ANCHORS = (64, 32, 16, 8, 4)
_AFTER = 2


def hinted_prompt(
    renderer: Renderer,
    lesson: Lesson,
    hint: str,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """The ids [Q] that a teacher is prompted with.

    Raises JudgeError where no user spoke, InvalidRequest where the template refuses the messages.
    """
    options = template_kwargs or {}
    told = renderer.render(hinted(lesson.messages, hint), lesson.tools, options)
    without = renderer.render(lesson.messages, lesson.tools, options)
    found = spliced(lesson.prompt_ids, without, told)
    return told if found is None else found


def hinted(messages: Sequence[Message], hint: str) -> list[Message]:
    """The conversation with the hint at the end of its last user message.

    The other messages are the same objects. Raises JudgeError where no user spoke.
    """
    places = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not places:
        raise JudgeError("there is no user message to put the hint at")
    at = places[-1]
    changed = dict(messages[at])
    # The hint's words may be a user's: none of them may end the message that they stand in.
    note = f"{_HEADING} {plain(hint).strip()}"
    content = changed.get("content")
    if isinstance(content, list | tuple):
        changed["content"] = [*content, {"type": "text", "text": note}]
    else:
        changed["content"] = f"{content}\n\n{note}" if content else note
    return [*messages[:at], changed, *messages[at + 1 :]]


def spliced(
    recorded: Sequence[int], without: Sequence[int], told: Sequence[int]
) -> list[int] | None:
    """`recorded` with the ids that make `without` into `told`; None where their place is not found.

    `without` [N] and `told` [M] are renderings that differ in one stretch.
    """
    start = common_prefix(without, told)
    rest, rest_told = without[start:], told[start:]
    end = common_prefix(rest[::-1], rest_told[::-1])
    removed, added = rest[: len(rest) - end], rest_told[: len(rest_told) - end]
    after = without[len(without) - end :][:_AFTER]
    for length in _ANCHORS:
        before = without[max(0, start - length) : start]
        if not before or not after:
            return None
        at = _last(recorded, [*before, *removed, *after])
        if at is not None:
            place = at + len(before)
            return [*recorded[:place], *added, *recorded[place + len(removed) :]]
    return None


def _last(ids: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Where `wanted` stands in `ids` for the last time."""
    data, pattern = array("i", ids).tobytes(), array("i", wanted).tobytes()
    at = data.rfind(pattern)
    while at >= 0:
        if at % 4 == 0:
            return at // 4
        at = data.rfind(pattern, 0, at + len(pattern) - 1)
    return None
