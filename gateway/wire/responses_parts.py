"""Output items while they are streamed: each tells the events that open, extend and close it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.records import Delta, ToolCall
from gateway.wire.base import TokenLogprob
from gateway.wire.responses_output import (
    Item,
    call_item,
    logprob,
    message_item,
    reasoning_item,
    text_part,
)

#: (type of the event, its fields but for type, sequence number and output index).
Event = tuple[str, dict[str, Any]]


class Part(ABC):
    """One item that is being written."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.logprobs: Sequence[TokenLogprob] = ()
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def sampled(self) -> str:
        """What of it stands among the sampled tokens as it is here."""
        return self.text

    @abstractmethod
    def takes(self, delta: Delta) -> bool:
        """Whether a delta belongs to this item."""

    @abstractmethod
    def item(self, status: str) -> Item: ...

    @abstractmethod
    def _opening(self) -> Iterator[Event]: ...

    @abstractmethod
    def extend(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]: ...

    @abstractmethod
    def _closing(self) -> Iterator[Event]: ...

    def open(self) -> Iterator[Event]:
        yield "response.output_item.added", {"item": self.item("in_progress")}
        yield from self._opening()

    def close(self, status: str) -> Iterator[Event]:
        yield from self._closing()
        yield "response.output_item.done", {"item": self.item(status)}

    def _at(self, **fields: Any) -> dict[str, Any]:
        return {"item_id": self.id, **fields}


class MessagePart(Part):
    def takes(self, delta: Delta) -> bool:
        return delta.call_index is None and not delta.reasoning

    def item(self, status: str) -> Item:
        content = [] if status == "in_progress" else [text_part(self.text, self.logprobs)]
        return message_item(self.id, content, status)

    def _opening(self) -> Iterator[Event]:
        yield "response.content_part.added", self._at(content_index=0, part=text_part(""))

    def extend(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        self._texts.append(delta.text)
        shown = [logprob(token) for token in logprobs]
        yield (
            "response.output_text.delta",
            self._at(content_index=0, delta=delta.text, logprobs=shown),
        )

    def _closing(self) -> Iterator[Event]:
        part = text_part(self.text, self.logprobs)
        yield (
            "response.output_text.done",
            self._at(content_index=0, text=part["text"], logprobs=part["logprobs"]),
        )
        yield "response.content_part.done", self._at(content_index=0, part=part)


class ReasoningPart(Part):
    """Reasoning in the open, or in the place of the summary that was asked for."""

    def __init__(self, id_: str, *, summary: bool) -> None:
        super().__init__(id_)
        self._summary = summary

    def takes(self, delta: Delta) -> bool:
        return bool(delta.reasoning)

    def item(self, status: str) -> Item:
        text = "" if status == "in_progress" else self.text
        return reasoning_item(self.id, text, status, summary=self._summary)

    def _opening(self) -> Iterator[Event]:
        if self._summary:
            yield "response.reasoning_summary_part.added", self._part("")
        else:
            yield "response.content_part.added", self._part("")

    def extend(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:  # noqa: ARG002 - reasoning shows none
        self._texts.append(delta.reasoning)
        kind = "reasoning_summary_text" if self._summary else "reasoning_text"
        yield f"response.{kind}.delta", self._indexed(delta=delta.reasoning)

    def _closing(self) -> Iterator[Event]:
        kind = "reasoning_summary_text" if self._summary else "reasoning_text"
        part = "reasoning_summary_part" if self._summary else "content_part"
        yield f"response.{kind}.done", self._indexed(text=self.text)
        yield f"response.{part}.done", self._part(self.text)

    def _indexed(self, **fields: Any) -> dict[str, Any]:
        return self._at(**{"summary_index" if self._summary else "content_index": 0}, **fields)

    def _part(self, text: str) -> dict[str, Any]:
        kind = "summary_text" if self._summary else "reasoning_text"
        return self._indexed(part={"type": kind, "text": text})


class CallPart(Part):
    def __init__(self, id_: str, delta: Delta, namespace: str | None) -> None:
        super().__init__(id_)
        self._index = delta.call_index
        self._call = ToolCall(id=delta.call_id or "", name=delta.call_name or "", arguments="")
        self._namespace = namespace

    @property
    def sampled(self) -> str:
        return self._call.name

    def takes(self, delta: Delta) -> bool:
        return delta.call_index == self._index

    def item(self, status: str) -> Item:
        arguments = "" if status == "in_progress" else self.text
        call = ToolCall(id=self._call.id, name=self._call.name, arguments=arguments)
        return call_item(self.id, call, status, self._namespace)

    def _opening(self) -> Iterator[Event]:
        yield from ()

    def extend(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:  # noqa: ARG002 - calls show none
        if delta.arguments:
            self._texts.append(delta.arguments)
            yield "response.function_call_arguments.delta", self._at(delta=delta.arguments)

    def _closing(self) -> Iterator[Event]:
        yield (
            "response.function_call_arguments.done",
            self._at(name=self._call.name, arguments=self.text),
        )
