"""Whole exchanges of real clients with a running gateway: kept without what is private, replayed.

An exchange of `tests/data/exchanges` is all that one client sent, and what the model said to each
request (`says`, None where none was asked). Ids that the gateway gave out stand in it as `{2.1}`,
the second id of the first answer in which they were; a replay puts in those that it is given.
Of long texts that hold none only the beginning is kept, with a digest, so that equal ones stay
equal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import aiohttp
import numpy as np

from tests.fixtures_gateway import Gateway
from tests.recorder import Exchange, Recorder

EXCHANGES = Path(__file__).parent / "data" / "exchanges"
RECORDED = Path("build") / "exchanges"

_KEY = "KEY"
_LONGEST = 120
_KEPT = 40
_LEFT_OUT = {"accept", "accept-encoding", "accept-language", "connection", "content-length", "host"}
#: Names of what tells a person or a machine: random ones of no use to a replay.
_PRIVATE = re.compile(r'((?:installation|device)[-_]id\\*"?\s*[:=]\s*\\*"?)[0-9a-f-]{32,}')
_MINTED = re.compile(
    r"(?:call|toolu)_[0-9a-f]{24}|(?:resp|msg|rs|fc|chatcmpl)[_-][0-9a-f]{32}(?:[0-9a-f]{4})?"
    r'|(?<="signature":")[A-Za-z0-9+/=]{16,}'
)
_PLACE = re.compile(r"\{(\d+)\.(\d+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of a client."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str
    status: int
    says: str | None

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        body = told["body"]
        text = "" if body is None else json.dumps(body, ensure_ascii=False)
        return cls(**{**told, "body": text})


def load(name: str) -> list[Sent]:
    """What one client sent."""
    told = json.loads((EXCHANGES / f"{name}.json").read_text())
    return [Sent.read(request) for request in told["requests"]]


async def save(gateway: Gateway, recorder: Recorder, name: str, hidden: Mapping[str, str]) -> None:
    """Write what was recorded to `build/exchanges`; `hidden` maps private words to plain ones."""
    says = {}
    for row in await gateway.rows("SELECT id, sampled_ids FROM turns"):
        ids = np.frombuffer(row["sampled_ids"], np.int32).tolist()
        stop = gateway.services.tokenizer.facts.stop_token_ids[0]
        says[row["id"].hex] = gateway.services.tokenizer.decode([i for i in ids if i != stop])
    minted: dict[str, str] = {}
    lines = []
    for number, exchange in enumerate(recorder.exchanges, 1):
        lines.append(json.dumps(_told(exchange, says, minted, hidden), ensure_ascii=False))
        for place, id_ in enumerate(_ids(exchange.answer), 1):
            minted.setdefault(id_, f"{{{number}.{place}}}")
    agent = recorder.exchanges[-1].headers.get("user-agent", "")
    RECORDED.mkdir(parents=True, exist_ok=True)
    (RECORDED / f"{name}.json").write_text(
        f'{{"client": {json.dumps(agent)}, "requests": [\n' + ",\n".join(lines) + "\n]}\n"
    )


def _told(
    exchange: Exchange,
    says: Mapping[str, str],
    minted: Mapping[str, str],
    hidden: Mapping[str, str],
) -> dict[str, Any]:
    def public(text: str) -> str:
        for word, instead in [*hidden.items(), *minted.items()]:
            text = text.replace(word, instead)
        return _PRIVATE.sub(lambda found: f"{found[1]}{'0' * 32}", text)

    def plain(text: str) -> str:
        text = public(text)
        told = text.startswith("{") or _PLACE.search(text)
        if len(text) > _LONGEST and not told:
            text = f"{text[:_KEPT]}… {hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return text

    def walked(value: Any) -> Any:
        if isinstance(value, str):
            return plain(value)
        if isinstance(value, list):
            return [walked(each) for each in value]
        return {k: walked(v) for k, v in value.items()} if isinstance(value, dict) else value

    body = walked(json.loads(exchange.body)) if exchange.body else None
    if body is not None and body.get("tools"):
        body["tools"] = _without(body["tools"], "description")
    headers = {k: public(v) for k, v in exchange.headers.items() if k not in _LEFT_OUT}
    # What is read again later was said before.
    answer = exchange.answer.decode() if exchange.method == "POST" else ""
    return {
        "method": exchange.method,
        "path": public(exchange.path),
        "headers": headers,
        "body": body,
        "status": exchange.status,
        "says": next((text for turn, text in says.items() if turn in answer), None),
    }


def _without(value: Any, name: str) -> Any:
    """The same without each text of that name; an argument of a tool may have it too."""
    if isinstance(value, list):
        return [_without(each, name) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: _without(v, name) for k, v in value.items() if k != name or not isinstance(v, str)}


def _ids(answer: bytes) -> Iterable[str]:
    return dict.fromkeys(_MINTED.findall(answer.decode()))


async def replay(gateway: Gateway, sent: Iterable[Sent]) -> list[UUID | None]:
    """Send an exchange again; the turn of each request, None where it was none."""
    turns: list[UUID | None] = []
    given: list[list[str]] = []
    known = {row["id"] for row in await gateway.rows("SELECT id FROM turns")}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        for request in sent:
            if request.says is not None:
                gateway.says(request.says)

            def put(text: str) -> str:
                found = _PLACE.sub(lambda at: given[int(at[1]) - 1][int(at[2]) - 1], text)
                return found.replace(_KEY, gateway.keys.agent)

            headers = {name: put(value) for name, value in request.headers.items()}
            async with http.request(
                request.method,
                gateway.url + put(request.path),
                headers=headers,
                data=put(request.body).encode() or None,
            ) as answer:
                told = await answer.read()
            assert answer.status == request.status, told[:500]
            given.append([*_ids(told)])
            new = {row["id"] for row in await gateway.rows("SELECT id FROM turns")} - known
            known |= new
            assert len(new) == (request.says is not None)
            turns.append(new.pop() if new else None)
    return turns
