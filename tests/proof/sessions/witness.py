"""A proxy between gateway and engine that keeps every byte of each generation, both ways.

It shares no code with the gateway: what it kept is read with the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp import web

#: One event of a stream, decoded and changed in place; see `damages`.
Damage = Callable[[dict[str, Any]], None]

_PASSED_ON = ("content-type", "authorization")


@dataclass(kw_only=True)
class Exchange:
    """One `/generate`: what the engine was given, and what it said before any damage."""

    request: bytes
    response: bytearray = field(default_factory=bytearray)
    status: int = 0
    damaged: str = ""

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.request)
        return decoded

    def events(self) -> list[dict[str, Any]]:
        """The events of the stream; `[DONE]` is left out."""
        payloads = [
            line.removeprefix(b"data:").strip()
            for line in bytes(self.response).split(b"\n")
            if line.startswith(b"data:")
        ]
        return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


class Witness:
    """Start with `async with Witness(url) as witness`; the gateway's engine is `witness.url`.

    Of a request for which `asks(rid)` is true, the engine is also told to say which prompt ids it
    saw. `damage(rid)` names what is done to the events of a reply on their way.
    """

    def __init__(self, engine_url: str) -> None:
        self.engine_url = engine_url.rstrip("/")
        self.exchanges: dict[str, Exchange] = {}
        self.asks: Callable[[str], bool] = lambda _: False
        self.damage: Callable[[str], str] = lambda _: ""
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._http is not None
        await self._runner.cleanup()
        await self._http.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._http is not None
        sent = await request.read()
        exchange = None
        if request.path == "/generate":
            body = json.loads(sent)
            if body.get("stream"):
                if self.asks(body["rid"]):
                    sent = json.dumps({**body, "logprob_start_len": 0}).encode()
                exchange = Exchange(request=sent, damaged=self.damage(body["rid"]))
                self.exchanges[body["rid"]] = exchange
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        async with self._http.request(
            request.method, self.engine_url + request.path_qs, data=sent, headers=headers
        ) as answer:
            response = web.StreamResponse(
                status=answer.status,
                headers={"content-type": answer.headers.get("content-type", "text/plain")},
            )
            await response.prepare(request)
            if exchange is None:
                await response.write(await answer.read())
            else:
                exchange.status = answer.status
                await _stream(answer, response, exchange)
            await response.write_eof()
            return response


async def _stream(
    answer: aiohttp.ClientResponse, response: web.StreamResponse, exchange: Exchange
) -> None:
    change = damages().get(exchange.damaged)
    held = b""
    async for part in answer.content.iter_any():
        exchange.response += part
        if change is None:
            await response.write(part)
            continue
        *whole, held = (held + part).split(b"\n\n")
        for event in whole:
            payload = event.removeprefix(b"data:").strip()
            if payload and payload != b"[DONE]":
                said = json.loads(payload)
                change(said)
                await response.write(b"data: " + json.dumps(said).encode() + b"\n\n")
            else:
                await response.write(event + b"\n\n")


def damages() -> dict[str, Damage]:
    """What may go wrong on the way and must be seen; each as it changes one event."""

    def lost_logprob(event: dict[str, Any]) -> None:
        del event["meta_info"]["output_token_logprobs"][-1:]

    def lost_id(event: dict[str, Any]) -> None:
        del event["output_ids"][-1:]

    def other_id(event: dict[str, Any]) -> None:
        event["output_ids"] = [id_ ^ 1 for id_ in event["output_ids"]]

    def doubled(event: dict[str, Any]) -> None:
        event["output_ids"] = event["output_ids"] * 2

    def no_number(event: dict[str, Any]) -> None:
        entries = event["meta_info"]["output_token_logprobs"]
        event["meta_info"]["output_token_logprobs"] = [[None, *rest] for _, *rest in entries]

    def fewer_counted(event: dict[str, Any]) -> None:
        meta = event["meta_info"]
        meta["completion_tokens"] = max(meta["completion_tokens"] - 1, 0)

    return {
        "lost_logprob": lost_logprob,
        "lost_id": lost_id,
        "other_id": other_id,
        "doubled": doubled,
        "no_number": no_number,
        "fewer_counted": fewer_counted,
    }
