"""What a hostile client can send: to paths, headers, logs and sizes, with keys that are no more."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from aiohttp import web

from gateway.api.protocol import MAX_HEAD_BYTES
from gateway.config import EngineSettings, LogSettings, TracingSettings
from gateway.engine.openai import OpenAIEngine
from gateway.engine.sglang import SglangEngine
from gateway.errors import EngineError, JudgeError
from gateway.records import Generation, PolicyKind, PolicyRef, Role, Sampling, new_id
from gateway.telemetry import configure_logging
from gateway.telemetry.tracing import Traces, of_turn
from judge import prompts
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from tests.fixtures_gateway import Gateway

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4}
FORGED = '{"event": "served", "turn_id": "forged"}'


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def raw(gateway: Gateway, head: bytes, body: bytes = b"") -> Answer | None:
    """What is answered to these very bytes; None where the connection is closed without a word."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head + b"Connection: close\r\n\r\n" + body)
        async with asyncio.timeout(60):
            said = await reader.read()
    except ConnectionError:
        return None
    finally:
        writer.close()
    if not said:
        return None
    first, _, rest = said.partition(b"\r\n\r\n")
    line, *lines = first.decode("latin-1").split("\r\n")
    headers = dict(one.lower().split(": ", 1) for one in lines)
    return Answer(int(line.split()[1]), headers, rest)


def post(gateway: Gateway, *headers: bytes, body: bytes | None = None) -> tuple[bytes, bytes]:
    """Head and body of a chat request with more headers."""
    sent = json.dumps(CHAT).encode() if body is None else body
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"Host: gateway",
        b"Authorization: Bearer " + gateway.keys.agent.encode(),
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(sent),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n", sent


ROUTES = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/messages", CHAT),
    ("POST", "/v1/messages/count_tokens", CHAT),
    ("POST", "/v1/responses", {"model": "tiny", "input": "Hello?"}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "Hello"}),
    ("GET", "/v1/models", None),
    ("GET", f"/v1/responses/resp_{UUID(int=1).hex}", None),
    ("POST", f"/v1/turns/{UUID(int=1)}/feedback", {"score": 1}),
    ("GET", "/admin/v1/status", None),
    ("GET", "/admin/v1/sessions", None),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize("role", [Role.AGENT, Role.ADMIN])
async def test_a_key_that_is_revoked_or_expired_opens_nothing(gateway: Gateway, role: Role) -> None:
    keys = gateway.services.keys
    tenant = await keys.ensure_tenant("one")
    values = (tenant, "old", role, gateway.keys.lineage_id)
    _, expired = await keys.create(*values, expires_at=time.time() - 1)
    key_id, revoked = await keys.create(*values)
    async with aiohttp.ClientSession() as http:

        async def status(secret: str, method: str, path: str, body: Any) -> int:
            headers = {"authorization": f"Bearer {secret}"}
            async with http.request(
                method, gateway.url + path, json=body, headers=headers
            ) as answer:
                text = await answer.text()
                assert secret not in text
                return answer.status

        # It is remembered as valid, and refused all the same.
        first = ROUTES[0] if role is Role.AGENT else ROUTES[-2]
        assert await status(revoked, *first) == 200
        await keys.revoke(key_id)
        for secret in (expired, revoked, "sk-ns-" + "x" * 43, revoked[:-1], revoked + "x"):
            assert [await status(secret, *one) for one in ROUTES] == [401] * len(ROUTES)


PATHS = [
    "/dashboard/../../../../../../etc/passwd",
    "/dashboard/%2e%2e/%2e%2e/%2e%2e/pyproject.toml",
    "/dashboard/..%2f..%2f..%2fpyproject.toml",
    "/dashboard/..%5c..%5c__init__.py",
    "/dashboard/views/..%2f__init__.py",
    "/dashboard//etc/passwd",
    "/dashboard/app.js%00.html",
    "//etc/passwd",
    "/v1/models/..%2f..%2fadmin%2fv1%2fsessions",
    "/v1/../admin/v1/sessions",
    "/admin/v1/sessions/%27%20OR%201=1--",
    "/admin/v1/turns/..%2f..%2f..%2fetc%2fpasswd",
]


async def test_no_path_leads_out_of_its_place(gateway: Gateway) -> None:
    for path in PATHS:
        for key in (gateway.keys.agent, gateway.keys.admin):
            head = f"GET {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {key}\r\n"
            answer = await raw(gateway, head.encode())
            assert answer is not None
            assert answer.status in (400, 403, 404), (path, answer)
            assert not re.search(rb"root:|\[project\]|from __future__", answer.body)


HEADERS = [
    b"X-Request-Id: a%0d%0aSet-Cookie: stolen=1",
    b"X-Request-Id: a\xc4\x8d\xc4\x8aSet-Cookie: stolen=1",
    b"X-Request-Id: <script>alert(1)</script>",
    b"X-Request-Id: " + b"a" * 129,
    b"X-Session-Id: a%0d%0aSet-Cookie: stolen=1",
    b"Idempotency-Key: \xe5\x98\x8a\xe5\x98\x8dSet-Cookie: stolen=1",
]


async def test_no_header_of_a_client_writes_one_of_the_answer(gateway: Gateway) -> None:
    for sent in HEADERS:
        answer = await raw(gateway, *post(gateway, sent))
        assert answer is not None
        assert answer.status == 200
        assert "set-cookie" not in answer.headers
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        assert not re.search(r"stolen|script|a{33}", str(answer.headers))


TWO_WAYS = [
    b"X-Request-Id: a\rSet-Cookie: stolen=1",
    b"X-Request-Id: a\x00b",
    b"X Request Id: a",
    b"Transfer-Encoding: chunked",
    b"Content-Length: 3",
]


async def test_a_head_that_reads_in_two_ways_is_refused(gateway: Gateway) -> None:
    for sent in TWO_WAYS:
        answer = await raw(gateway, *post(gateway, sent))
        assert answer is None or (answer.status, answer.headers["connection"]) == (400, "close")
        assert gateway.engine.requests == []


async def test_a_head_without_end_is_cut_off(gateway: Gateway) -> None:
    for more in (b"X-Long: " + b"a" * 4 * MAX_HEAD_BYTES, b"X-Many: aaaa\r\n" * MAX_HEAD_BYTES):
        answer = await raw(gateway, *post(gateway, more))
        assert answer is None or answer.status == 431
    line = b"GET /" + b"a" * 4 * MAX_HEAD_BYTES + b" HTTP/1.1\r\n"
    answer = await raw(gateway, line)
    assert answer is None or answer.status == 431
    assert gateway.engine.requests == []
    # What fits is served, also after a request on the same connection and in pieces.
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head, body = post(gateway, b"X-Fits: " + b"a" * (MAX_HEAD_BYTES // 2))
    for _ in range(3):
        for start in range(0, len(head), 9000):
            writer.write(head[start : start + 9000])
            await writer.drain()
        writer.write(b"\r\n" + body)
        said = await reader.readuntil(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200")
        [length] = re.findall(rb"content-length: (\d+)", said)
        await reader.readexactly(int(length))
    writer.close()


async def test_a_large_body_is_no_large_head(gateway: Gateway) -> None:
    """However the reads of one connection cut requests up."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    large = json.dumps({**CHAT, "user": "u", "metadata": {"pad": " " * 10}}).encode()
    head, body = post(gateway, body=large + b" " * (2 * MAX_HEAD_BYTES))
    for cut in (0, len(head) + 10, len(head) + MAX_HEAD_BYTES):
        whole = head + b"\r\n" + body
        for part in (whole[:cut], whole[cut:]):
            writer.write(part)
            await writer.drain()
        said = await reader.readuntil(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200"), said
        [length] = re.findall(rb"content-length: (\d+)", said)
        await reader.readexactly(int(length))
    writer.close()


async def test_whoever_says_nothing_is_not_waited_for(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.protocol.HEAD_TIMEOUT_S", 0.05)
    host, port = gateway.url.removeprefix("http://").split(":")
    for begun in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begun)
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_what_is_too_large_or_too_deep_is_refused_and_costs_nothing(gateway: Gateway) -> None:
    limit = gateway.services.settings.gateway.max_body_bytes
    deep = b'{"model": "tiny", "messages": ' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    long = "n" * 201
    cases = [
        (b"", b'{"messages": "' + b"a" * limit + b'"}', 413),
        (b"", deep, 400),
        (b"", b'{"a":' * 30_000, 400),
        (b"X-Session-Id: " + long.encode(), None, 400),
        (b"", json.dumps({**CHAT, "max_tokens": 10**400}).encode(), 400),
        (b"", json.dumps({**CHAT, "stop": ["a"] * 10_000}).encode(), 400),
        (b"", json.dumps({**CHAT, "n": 10**9}).encode(), 400),
        (b"", json.dumps({**CHAT, "messages": [CHAT["messages"][0]] * 4_097}).encode(), 400),
    ]
    for header, body, status in cases:
        answer = await raw(gateway, *post(gateway, *([header] if header else []), body=body))
        assert answer is not None
        assert answer.status == status, (answer, (body or header)[:60])
        assert len(answer.body) < 1000
    assert gateway.engine.requests == []


async def test_nobody_writes_lines_of_the_log_or_reads_keys_in_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    configure_logging(LogSettings(format="json", level="debug"), "gateway", out)
    evil = f"x\r\n{FORGED}\n\x1b[2J\u2028"
    bodies = [
        {**CHAT, "model": evil},
        {**CHAT, "tools": [{"type": "function", "function": {"name": evil}}]},
        {**CHAT, "messages": [{"role": evil, "content": "a"}]},
        {**CHAT, "user": evil},
        {**CHAT, "metadata": {"session_id": evil}},
    ]
    headers = (
        b"User-Agent: a\x1b[31m" + FORGED.encode(),
        b"X-Request-Id: \x1b]0;title\x07",
        b"X-Session-Id: " + FORGED.encode(),
        b"X-Turn-Type: \x1b[31m" + FORGED.encode(),
    )
    for body in bodies:
        await raw(gateway, *post(gateway, *headers, body=json.dumps(body).encode()))
    for header in headers:
        await raw(gateway, *post(gateway, header))
    guess = gateway.keys.agent[:-1] + "~"
    head = f"GET /admin/v1/sessions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {guess}\r\n"
    await raw(gateway, head.encode())
    # A defect, too, says nothing to its client of what was in hand.
    monkeypatch.setattr(gateway.services.limiter, "of", lambda _: 1 / 0)
    answer = await raw(gateway, *post(gateway))
    assert answer is not None
    assert answer.status == 500
    assert b"division" not in answer.body
    assert b"Traceback" not in answer.body
    for handler in logging.getLogger().handlers:
        handler.close()
    text = out.getvalue()
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert {"refused", "served", "request_failed"} <= {line["event"] for line in lines}
    assert not any(line.get("turn_id") == "forged" for line in lines)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    password = gateway.services.settings.database_url.split(":")[2].split("@")[0]
    for secret in (gateway.keys.agent, gateway.keys.admin, guess, password):
        assert secret not in text


ADDRESSES = [
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:5432/",
    "http://[::1]/",
    "file:///etc/passwd",
    "/etc/passwd",
    "gopher://127.0.0.1/",
    "data:text/html,<script>alert(1)</script>",
]


async def test_no_address_that_a_client_sends_is_asked(gateway: Gateway) -> None:
    for address in ADDRESSES:
        part = {"type": "image_url", "image_url": {"url": address}}
        body = {**CHAT, "messages": [{"role": "user", "content": [part]}]}
        answer = await raw(gateway, *post(gateway, body=json.dumps(body).encode()))
        assert answer is not None
        assert answer.status == 400
        assert gateway.engine.requests == []


@asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[str, list[str], list[str]]]:
    """A server that sends everybody on to another one; who asked it, and who came there."""
    asked: list[str] = []
    came: list[str] = []

    async def take(request: web.Request) -> web.Response:
        came.append(request.path)
        return web.json_response({})

    async def send_on(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect(f"{inside}{request.path}")

    async with _listening(take) as inside, _listening(send_on) as outside:
        yield outside, asked, came


@asynccontextmanager
async def _listening(handler: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_configured_address_sends_nobody_on_to_another() -> None:
    """What it is trusted with stays there: prompts, conversations, keys."""
    policy = PolicyRef(lineage_id=new_id(), version=0, kind=PolicyKind.BASE)
    async with elsewhere() as (url, asked, came):
        engine = SglangEngine(EngineSettings(url=url))
        wanted = Generation(
            rid="r", input_ids=(1, 2), policy=policy, sampling=Sampling(temperature=1.0, top_p=1.0)
        )
        with pytest.raises(EngineError):
            await anext(engine.generate(wanted))
        with pytest.raises(EngineError):
            await engine.score([1, 2, 3], 1, policy)
        with pytest.raises(EngineError):
            await engine.status()
        await engine.close()
        upstream = OpenAIEngine(EngineSettings(kind="openai", url=f"{url}/v1"))
        with pytest.raises(EngineError):
            await upstream.status()
        await upstream.close()
        endpoint = Endpoint(LlmConfig(base_url=f"{url}/v1", model="m", retries=0))
        with pytest.raises(JudgeError):
            await endpoint.ask(prompts.grade([]))
        await endpoint.close()
        assert len({*asked}) >= 4
        assert came == []


async def test_a_collector_of_traces_sends_nobody_on_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is sent to one that answers with a redirect is lost; the secret goes nowhere else."""
    monkeypatch.setattr("gateway.telemetry.tracing._GRACE_S", 240.0)
    async with elsewhere() as (url, asked, came):
        settings = TracingSettings(endpoint=url, headers={"authorization": "Bearer secret"})
        traces = Traces(settings, "gateway")
        turn_id = new_id()
        context = of_turn(turn_id)
        traces.span("turn", context, parent=None, start=1.0, end=2.0, attributes={})
        # Whatever waits is sent, and what it is answered is seen, before this ends.
        await traces.close()
        assert asked == ["/v1/traces"]
        assert came == []
