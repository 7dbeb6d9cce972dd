"""Sends cases as bytes, and says what is wrong with the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.fuzz.cases import Case

_WITHIN_S = 60
_OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_AT_ONCE = 8


class NoAnswer(ConnectionError):
    """The server closed the connection without a whole head."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Tally:
    """What came back: how often each status, the turns that were served, and every complaint."""

    statuses: dict[int, int] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.statuses.values())


async def send(port: int, message: bytes, *, end: bool = False) -> Answer:
    """One exchange on a connection of its own, `end`ed after the message. Raises NoAnswer."""
    async with asyncio.timeout(_WITHIN_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with suppress(ConnectionError):
                # Who refuses early may close before all has been sent.
                writer.write(message)
                if end:
                    writer.write_eof()
            return _answer(await reader.read())
        except ConnectionError as error:
            raise NoAnswer(str(error)) from error
        finally:
            writer.close()


async def run(port: int, cases: Iterable[Case]) -> Tally:
    """Send all cases, some at once."""
    tally, waiting = Tally(), iter(cases)

    async def work() -> None:
        for case in waiting:
            try:
                answer = await send(port, case.message(), end=case.cut)
            except (NoAnswer, TimeoutError) as error:
                answer = None
                problem = None if case.cut else f"no answer: {error!r}"
            else:
                problem = complaint(case, answer)
                if turn := answer.headers.get("x-nextstate-turn-id"):
                    tally.turns.append(turn)
            status = answer.status if answer else 0
            tally.statuses[status] = tally.statuses.get(status, 0) + 1
            if problem is not None:
                tally.complaints.append(f"{problem}\n  {case}\n  {answer}")

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return tally


def complaint(case: Case, answer: Answer) -> str | None:
    """What no client should have seen, or None."""
    if answer.status >= 500 or answer.status == 422:
        return f"status {answer.status}"
    if answer.status < 400:
        return _unfinished(answer)
    try:
        told = answer.json()
    except ValueError:
        return "an error that is no JSON"
    if not isinstance(told, dict):
        return "an error that is no object"
    if not (right := _FORMS[_family(case)](told, answer)):
        return f"an error of another form: {right}"
    return None


def _family(case: Case) -> str:
    """Whose errors a path answers with, whatever was made of it.

    Where no dialect has it, or two have, the client's own header tells.
    """
    path = unquote(case.path.partition("?")[0])
    if path.startswith("/v1/messages"):
        return "anthropic"
    if path.startswith(("/v1/turns/", "/v1/sessions/")):
        return "api"
    marked = any(name.lower() == "anthropic-version" for name, _ in case.headers)
    return "anthropic" if marked and not path.startswith(_OPENAI) else "openai"


def _openai(told: dict[str, Any], answer: Answer) -> bool:
    error = told.get("error")
    return (
        answer.kind == "application/json"
        and isinstance(error, dict)
        and {"message", "type", "param", "code"} <= error.keys()
        and bool(error["message"])
        and isinstance(error["type"], str)
        and "x-request-id" in answer.headers
    )


def _anthropic(told: dict[str, Any], answer: Answer) -> bool:
    error = told.get("error")
    return (
        answer.kind == "application/json"
        and told.get("type") == "error"
        and isinstance(error, dict)
        and bool(error.get("message"))
        and str(error.get("type", "")).endswith(("_error", "request_too_large"))
        and str(told.get("request_id", "")).startswith("req_")
        and answer.headers.get("request-id") == told["request_id"]
    )


def _problem(told: dict[str, Any], answer: Answer) -> bool:
    return (
        answer.kind == "application/problem+json"
        and told.get("status") == answer.status
        and bool(told.get("title"))
        and bool(told.get("detail"))
    )


_FORMS = {"openai": _openai, "anthropic": _anthropic, "api": _problem}


def _unfinished(answer: Answer) -> str | None:
    """Of a success: whether it can be read, and has an end."""
    if answer.kind == "text/event-stream":
        lines = answer.body.decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        if not events or any("error" in event for event in events):
            return "a stream with an error"
        ends = (b"data: [DONE]\n\n", b'{"type":"message_stop"}\n\n')
        ended = answer.body.endswith(ends) or events[-1].get("type", "").startswith("response.")
        return None if ended else "a stream without an end"
    try:
        answer.json()
    except ValueError:
        return None if not answer.body else "a success that is no JSON"
    return None


def _answer(data: bytes) -> Answer:
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        raise NoAnswer(repr(data[:200]))
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(first.split(" ")[1]), headers, body)


def _joined(body: bytes) -> bytes:
    parts: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        body = rest[length + 2 :] if length else b""
    return b"".join(parts)
