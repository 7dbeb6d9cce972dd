"""Bodies of requests that come compressed."""

from __future__ import annotations

import zlib

from gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

#: What zlib is told to expect of each: a gzip member, or a zlib stream.
_WINDOW_BITS = {
    "gzip": 16 + zlib.MAX_WBITS,
    "x-gzip": 16 + zlib.MAX_WBITS,
    "deflate": zlib.MAX_WBITS,
}
_IDENTITY = ("", "identity")


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """What a body says, of at most `limit` bytes; `encoding` is the header as it was sent.

    The original APIs take gzip. Nothing beyond the limit is ever unpacked. Raises
    UnsupportedEncoding, InvalidRequest for what is not of that encoding, BodyTooLarge.
    """
    name = encoding.strip().lower()
    if name in _IDENTITY:
        return body
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        raise UnsupportedEncoding(
            f"The content encoding {name[:40]!r} is not supported; use 'gzip', 'deflate' or none."
        )
    parts: list[bytes] = []
    room = limit
    while True:
        stream = zlib.decompressobj(bits)
        try:
            # One byte more than there is room for tells a body that is too large.
            part = stream.decompress(body, room + 1)
        except zlib.error:
            raise _broken(name) from None
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise BodyTooLarge(f"The request body is larger than {limit} bytes, unpacked.")
        if not stream.eof:
            raise _broken(name)
        body = stream.unused_data
        if not body:
            return b"".join(parts)
        if bits == zlib.MAX_WBITS:
            # Several gzip members are one body, several zlib streams are none.
            raise _broken(name)


def _broken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"We could not unpack the body of your request as {name}.", code="invalid_encoding"
    )
