"""What a judge sees, and what it finds. Reading text out of messages is done here, once.

A message's content is a string or a list of parts. Only what a user wrote can praise or blame:
tool results, the wrappers that agents put around them in user messages, and reminders that agents
insert are told apart here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.records import FeedbackRecord, FinishReason, JudgeJob, Judgement, Message, is_remark

#: Characters of one text that rules look at, from either end.
TEXT_LIMIT = 4096

#: Rule name of a turn whose reply was cut off and that nobody blamed.
TRUNCATED = "truncated"

_INSERTED = re.compile(
    r"<(system[-_]reminder|environment_(?:context|details)|local-command-\w+|command-\w+)\b[^>]*>"
    r".*?(?:</\1>|\Z)",
    re.DOTALL,
)
#: What an agent tells its model in a user's place.
_NOTIFICATION = re.compile(r"\s*\[SYSTEM NOTIFICATION - NOT USER INPUT\]")
#: A time stamp before the user's words, and a heading over them.
_HEADING = re.compile(r"(?:\[\w{3} \d{4}-\d\d-\d\d[^\]\n]{0,40}\]|New task:)\s*")
#: Where an agent reports tool output and goes on with the user's next words.
_NEXT_TASK = re.compile(r"\nNew task:\n")
#: Agents without tool messages report what a tool said as a user message that starts like this.
_OBSERVATION = re.compile(
    r"\s*(?:<(?:returncode|output|observation|tool_(?:result|response|output)|function_results?)\b"
    r"|observation\s*:|\[?tool (?:result|output)\b|execution result of\b|\[\w+ for '.*'\] result:)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one tool call gave back; `flagged` where the message itself says it failed."""

    text: str
    flagged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule makes of a turn. `score` in [-1, 1].

    `explicit` marks somebody's direct word about this very turn, which no doubt about the reply's
    completeness overrules. `hint` is what the user himself said to do better.
    """

    score: float
    reason: str
    hint: str | None = None
    explicit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A turn and all that followed it. Nothing in here is an instruction to a judge.

    Where the user `discarded` the reply, `next_state` is what he said instead of what the reply
    answered: it is no answer to it.
    """

    request: tuple[Message, ...]
    reply: Message
    next_state: tuple[Message, ...]
    feedback: tuple[FeedbackRecord, ...]
    finish_reason: FinishReason
    discarded: bool = False

    @classmethod
    def of(cls, job: JudgeJob) -> Evidence:
        return cls(
            request=job.request,
            reply=job.reply,
            next_state=job.next_state,
            feedback=job.feedback,
            finish_reason=job.finish_reason,
            discarded=job.how == "rolled_back",
        )

    @property
    def reply_text(self) -> str:
        return content_text(self.reply.get("content"))

    @property
    def tool_calls(self) -> bool:
        return bool(self.reply.get("tool_calls"))

    @property
    def complete(self) -> bool:
        """Whether the model ended the reply itself."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)

    @property
    def asked(self) -> str:
        """The user's last words before the reply, empty where a tool or nobody spoke last."""
        return next(reversed([*user_texts(self.request)]), "")

    @property
    def answers(self) -> tuple[str, ...]:
        """What the user wrote after the reply, one text a message."""
        return () if self.discarded else tuple(user_texts(self.next_state))

    @property
    def instead(self) -> tuple[str, ...]:
        """What the user wrote in place of what the discarded reply answered."""
        return tuple(user_texts(self.next_state)) if self.discarded else ()

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Every tool result after the reply, parallel ones included."""
        return () if self.discarded else tuple(tool_results(self.next_state))


class Judge(Protocol):
    """Anything that can score a turn. None leaves it to the next judge in line."""

    @property
    def name(self) -> str: ...

    async def judge(self, evidence: Evidence) -> Judgement | None:
        """Raises JudgeError where it failed and the job should be tried again."""
        ...


def content_text(content: object) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list | tuple):
        return ""
    return "\n".join(text for part in content if (text := _part_text(part)))


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text", part.get("content"))
        return text if isinstance(text, str) else content_text(text)
    return ""


def user_texts(messages: tuple[Message, ...]) -> Iterator[str]:
    """What users wrote, without reminders inserted by agents and without tool output."""
    for message in messages:
        if message.get("role") != "user" or is_remark(message):
            continue
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [
                part
                for part in content
                if not _is_result(part) and not _NOTIFICATION.match(_part_text(part))
            ]
        text = _INSERTED.sub("", content_text(content)).strip()
        if _NOTIFICATION.match(text):
            continue
        if _OBSERVATION.match(text):
            text = "".join(_NEXT_TASK.split(text, maxsplit=1)[1:])
        if text := _HEADING.sub("", text, count=1) if _HEADING.match(text) else text:
            yield text


def tool_results(messages: tuple[Message, ...]) -> Iterator[ToolResult]:
    """Tool and function messages, result parts, and user messages that wrap tool output."""
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("tool", "function"):
            yield ToolResult(text=_as_text(content), flagged=_flagged(message))
        elif role == "user":
            results = (
                [part for part in content if _is_result(part)]
                if isinstance(content, list | tuple)
                else []
            )
            for part in results:
                yield ToolResult(text=content_text(part.get("content")), flagged=_flagged(part))
            text = content_text(content)
            if not results and _OBSERVATION.match(text):
                yield ToolResult(text=text)


def _as_text(content: object) -> str:
    """Tool content; a decoded JSON object is a result as well as the text of one."""
    if isinstance(content, Mapping) and not isinstance(content.get("text"), str):
        return json.dumps(content)
    return content_text(content)


def _is_result(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _flagged(message: Mapping[str, Any]) -> bool:
    return message.get("is_error") is True or message.get("status") == "error"


def edges(text: str) -> str:
    """`text`, or its start and end where it is long."""
    if len(text) <= 2 * TEXT_LIMIT:
        return text
    return f"{text[:TEXT_LIMIT]}\n{text[-TEXT_LIMIT:]}"
