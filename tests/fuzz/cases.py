"""Requests made at random, each of them again from its number alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import quote

from tests.fuzz.bodies import Valid
from tests.fuzz.values import STRANGE, changed, written

Header = tuple[str, str]

_TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
    "application/json; charset=utf-16", "application/json; charset=latin-1", "image/png", "a/b/c",
)  # fmt: skip
_HEADERS = (
    ("x-session-id", "s"), ("x-session-id", "x" * 300), ("x-session-id", "\xff\xfe"),
    ("x-session-id", "a\tb"), ("x-turn-type", "main"), ("x-turn-type", "\x80" * 20),
    ("x-session-done", "maybe"), ("x-stainless-retry-count", "9" * 5_000),
    ("x-stainless-retry-count", "\xb2"), ("x-stainless-retry-count", "-1"),
    ("idempotency-key", "k" * 201), ("idempotency-key", "\xad"), ("x-request-id", "a b"),
    ("x-request-id", "r" * 200), ("x-request-id", "\xe9"), ("user-agent", "\xff" * 300),
    ("session-id", "one"), ("thread-id", "two"), ("x-parent-session-id", "p"),
    ("x-openai-subagent", "\x80"), ("x-codex-turn-metadata", '{"request_kind": "'),
    ("x-codex-turn-state", "z" * 9_000), ("x-codex-window-id", "w"),
    ("anthropic-version", "never"), ("anthropic-beta", "x" * 2_000), ("accept", "text/html"),
    ("accept-encoding", "gzip"), ("content-encoding", "gzip"), ("x-forwarded-for", "'; --"),
    ("cookie", "a=" + "b" * 4_000), ("origin", "null"), ("range", "bytes=0-"),
    ("x-api-key", "sk-wrong"), ("expect", "nothing"), ("te", "trailers"),
)  # fmt: skip
#: Beyond the gateway's limit, and yet read soon: a refused body is not read for long.
_MOST_BYTES = 400_000
_AUTHORIZATION = ("", "Bearer", "Bearer \xff", "Basic YTpi", "Bearer " + "k" * 600, "Bearer sk-no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`pieces` are the sizes of the chunks that the body travels in; without them it has a length.

    A body that is `cut` ends, with the connection, before it is whole.
    """

    number: int
    family: str
    method: str
    path: str
    headers: tuple[Header, ...]
    body: bytes
    pieces: tuple[int, ...] = ()
    cut: bool = False

    def message(self) -> bytes:
        """The request as it goes over the wire."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: fuzz", "connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.body
        if self.pieces:
            lines.append("transfer-encoding: chunked")
            body = _chunked(body, self.pieces)
        elif body or self.method == "POST":
            lines.append(f"content-length: {len(body) + 10 * self.cut}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def __str__(self) -> str:
        return f"case {self.number}: {self.message()[:1_500]!r}"


def case(number: int, seed: int, all_valid: Sequence[Valid], key: str) -> Case:
    """The request of this number: a valid one, changed in up to six places."""
    rng = Random(f"{seed}/{number}")
    chosen = rng.choice(all_valid)
    method, path, headers = chosen.method, chosen.path, [("authorization", f"Bearer {key}")]
    headers.append(("content-type", "application/json"))
    body = b"" if chosen.body is None else _body(chosen.body, rng)
    if rng.random() < 0.15:
        headers += rng.sample(_HEADERS, rng.randint(1, 3))
    if rng.random() < 0.03:
        headers[1] = ("content-type", rng.choice(_TYPES))
    if rng.random() < 0.03:
        headers[0] = ("authorization", rng.choice(_AUTHORIZATION))
    if rng.random() < 0.02:
        method = rng.choice(("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "POST"))
    if chosen.body is None or rng.random() < 0.02:
        path = _path(path, rng)
    pieces, cut = (), False
    if body and rng.random() < 0.1:
        pieces = tuple(rng.randint(1, 200) for _ in range(rng.randint(1, 5)))
    elif body and rng.random() < 0.01:
        cut = True
    return Case(
        number=number,
        family=chosen.family,
        method=method,
        path=path,
        headers=tuple(headers),
        body=body,
        pieces=pieces,
        cut=cut,
    )


def _body(value: object, rng: Random) -> bytes:
    """One in ten stays as it is, so that the sessions, too, are not all of broken requests."""
    value = copy.deepcopy(value)
    changes = rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 4, 6))
    for _ in range(changes):
        value = changed(value, rng)
    body = written(value, rng)
    return (_spoiled(body, rng) if rng.random() < 0.15 else body)[:_MOST_BYTES]


def _spoiled(body: bytes, rng: Random) -> bytes:
    """Other bytes: cut off, doubled, turned over, put in, or all of them strange."""
    at, to = sorted((rng.randint(0, len(body)), rng.randint(0, len(body))))
    some = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
    return rng.choice(
        (
            body[:at],
            body[:at] + body[to:],
            body[:to] + body[at:to] + body[to:],
            body[:at] + some + body[at:],
            body[:at] + some + body[at + len(some) :],
            body + body,
            b"\xef\xbb\xbf" + body,
            body.decode("utf-8", "replace").encode("utf-16"),
            b"\0" * 20,
            b"",
            some,
            body + b" " * 10_000,
            json.dumps(str(body)).encode(),
        )
    )


def _path(path: str, rng: Random) -> str:
    """The path with something else in one of its parts, or in its query."""
    value = rng.choice([item for item in STRANGE if type(item) is str])[:300]
    told = quote(value.encode("utf-8", "surrogatepass"), safe="")
    head, _, query = path.partition("?")
    if rng.random() < 0.4:
        name = rng.choice(("limit", "order", "after", "include", "stream", "beta"))
        return f"{head}?{query}&{name}={told}"
    parts = head.split("/")
    parts[rng.randint(2, len(parts) - 1)] = told or "%FF"
    return "/".join(parts) + (f"?{query}" if query else "")


def _chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    frames, at = [], 0
    for size in (*sizes, len(body)):
        part = body[at : at + size]
        at += len(part)
        if part:
            frames.append(b"%x\r\n%b\r\n" % (len(part), part))
    return b"".join([*frames, b"0\r\n\r\n"])
