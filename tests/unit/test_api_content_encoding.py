"""Bodies of requests that come compressed."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gateway.api.content_encoding import decoded
from gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

BODY = b'{"model": "policy", "messages": []}'


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(BODY, mtime=0), "gzip"),
        (gzip.compress(BODY, mtime=0), " GZip "),
        (gzip.compress(BODY, mtime=0), "x-gzip"),
        (gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0), "gzip"),
        (zlib.compress(BODY), "deflate"),
        (BODY, "identity"),
        (BODY, ""),
    ],
)
def test_a_body_is_unpacked_as_its_header_says(packed: bytes, encoding: str) -> None:
    assert decoded(packed, encoding, 100) == BODY


def test_the_limit_is_of_what_is_unpacked() -> None:
    packed = gzip.compress(b"a" * 1000)
    assert decoded(packed, "gzip", 1000) == b"a" * 1000
    with pytest.raises(BodyTooLarge, match="larger than 999 bytes, unpacked"):
        decoded(packed, "gzip", 999)
    halves = gzip.compress(b"a" * 500) * 2
    with pytest.raises(BodyTooLarge):
        decoded(halves, "gzip", 999)


def test_no_more_is_unpacked_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 MiB of zeros in 100 kB: what zlib is let give out is counted.
    given: list[int] = []

    class Counted:
        def __init__(self, bits: int) -> None:
            self._stream = real(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            part = self._stream.decompress(data, most)
            given.append(len(part))
            return part

    real, bomb = zlib.decompressobj, gzip.compress(bytes(100 << 20))
    monkeypatch.setattr(zlib, "decompressobj", Counted)
    with pytest.raises(BodyTooLarge):
        decoded(bomb, "gzip", 1 << 20)
    assert given == [(1 << 20) + 1]


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip", "x" * 1000])
def test_what_is_not_known_is_refused(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding, match="is not supported; use 'gzip'") as caught:
        decoded(BODY, encoding, 100)
    assert caught.value.status == 415
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (BODY, "gzip"),
        (gzip.compress(BODY, mtime=0)[:-4], "gzip"),
        (gzip.compress(BODY, mtime=0) + b"more", "gzip"),
        (zlib.compress(BODY), "gzip"),
        (zlib.compress(BODY) * 2, "deflate"),
        (b"", "gzip"),
    ],
)
def test_what_is_not_packed_as_it_says_is_a_bad_request(packed: bytes, encoding: str) -> None:
    with pytest.raises(InvalidRequest, match="could not unpack"):
        decoded(packed, encoding, 100)
