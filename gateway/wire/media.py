"""Images, audio and files that clients send, checked and put into one form.

Data comes in base64; its type is told by its first bytes, so that nothing else reaches what
decodes it. An address is only passed on, and only where the operator lets the engine fetch it:
the gateway itself asks nobody.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gateway.config import ServerSettings
from gateway.errors import InvalidRequest
from gateway.records import DESCRIBED
from gateway.wire.json_body import invalid

#: Makes an error of (param, message, code) in the words of a dialect.
Complaint = Callable[[str, str, str], InvalidRequest]

_URL_CHARACTERS = 4096
_DATA = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)(?P<options>(?:;[\w.=+-]+)*),", re.IGNORECASE)
#: The first bytes of each type that is taken, and where a second mark stands.
_IMAGES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
_AUDIO = {
    "audio/wav": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    "audio/mpeg": re.compile(rb"ID3|\xff[\xe0-\xff]"),
    "audio/flac": re.compile(rb"fLaC"),
    "audio/ogg": re.compile(rb"OggS"),
}
_TYPES = {"image": _IMAGES, "audio": _AUDIO}
_SAME = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}
#: What clients call the formats of audio.
_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg"}
_UNSUPPORTED = "unsupported_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRules:
    """Which kinds are taken, and whether addresses may be passed on for an engine to fetch."""

    kinds: frozenset[str] = frozenset()
    fetched: bool = False


NO_MEDIA = MediaRules()
_LIMITS = ServerSettings()


class MediaReader:
    """Reads the media of one request and counts them. Every method raises InvalidRequest."""

    def __init__(
        self,
        rules: MediaRules = NO_MEDIA,
        limits: ServerSettings = _LIMITS,
        complain: Complaint = invalid,
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._complain = complain
        self._count = 0

    def check(self, kind: str, at: str) -> None:
        """Refuse a kind that no engine here takes; `at` is where the part stands."""
        if kind not in self._rules.kinds:
            raise refused(kind, f"{at}.type", self._complain)
        self._count += 1
        if self._count > self._limits.max_media:
            words = f"at most {self._limits.max_media} images and audio clips are allowed"
            raise self._complain(at, words, "array_above_max_length")

    def image(self, url: object, at: str, detail: object = None) -> dict[str, Any]:
        """A part of an image that stands under a data URL or an address."""
        url = self._text(url, at)
        if url[:5].lower() == "data:":
            description = self._data_url("image", url, at)
        else:
            description = self._address("image", url, at)
        part: dict[str, Any] = {"url": url}
        if detail is not None:
            part["detail"] = self._text(detail, at)
        return {"type": "image_url", "image_url": part, DESCRIBED: description}

    def image_data(self, type_: object, data: object, at: str) -> dict[str, Any]:
        """The same of a type and base64."""
        named = self._named("image", self._text(type_, at), at)
        url = f"data:{named};base64,{self._text(data, at)}"
        description = self._described("image", named, url[url.index(",") + 1 :], at)
        return {"type": "image_url", "image_url": {"url": url}, DESCRIBED: description}

    def audio(self, audio: object, at: str) -> dict[str, Any]:
        """A part of audio, given as base64 and the name of its format."""
        if not isinstance(audio, Mapping):
            raise self._complain(at, "expected an object", "invalid_type")
        named = _FORMATS.get(self._text(audio.get("format"), f"{at}.format"))
        if named is None:
            raise self._complain(
                f"{at}.format", f"supported values are {', '.join(map(repr, _FORMATS))}",
                "invalid_value",
            )  # fmt: skip
        data = self._text(audio.get("data"), f"{at}.data")
        description = self._described("audio", named, data, f"{at}.data")
        given = {"data": data, "format": audio["format"]}
        return {"type": "input_audio", "input_audio": given, DESCRIBED: description}

    def file_text(self, data: object, at: str) -> str:
        """What a text file says, given as a data URL. Other files are refused."""
        found = _DATA.match(data) if isinstance(data, str) else None
        if found is None or not found["type"].lower().startswith("text/"):
            raise refused("file", at, self._complain)
        assert isinstance(data, str), "it matched"
        return self.text(data[found.end() :], at)

    def text(self, data: str, at: str) -> str:
        """Text that comes in base64."""
        try:
            return self._decoded(data, at).decode()
        except UnicodeDecodeError:
            raise self._complain(at, "expected text in UTF-8", "invalid_value") from None

    def _text(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._complain(at, "expected a string", "invalid_type")
        return value

    def _data_url(self, kind: str, url: str, at: str) -> dict[str, Any]:
        found = _DATA.match(url)
        if found is None or not found["options"].lower().endswith(";base64"):
            words = "expected a data URL with a type, in base64"
            raise self._complain(at, words, "invalid_value")
        return self._described(kind, self._named(kind, found["type"], at), url[found.end() :], at)

    def _address(self, kind: str, url: str, at: str) -> dict[str, Any]:
        if not url.startswith(("https://", "http://")) or len(url) > _URL_CHARACTERS:
            raise self._complain(at, "expected a data URL or an http(s) address", "invalid_value")
        if not self._rules.fetched:
            words = "nothing is fetched here; send the data itself, in base64"
            raise self._complain(at, words, _UNSUPPORTED)
        digest = sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
        return {"kind": kind, "type": None, "bytes": None, "sha256": digest}

    def _named(self, kind: str, type_: str, at: str) -> str:
        named = _SAME.get(type_.lower(), type_.lower())
        if named not in _TYPES[kind]:
            words = f"supported types are {', '.join(_TYPES[kind])}"
            raise self._complain(at, words, _UNSUPPORTED)
        return named

    def _described(self, kind: str, named: str, data: str, at: str) -> dict[str, Any]:
        raw = self._decoded(data, at)
        found = next((name for name, start in _TYPES[kind].items() if start.match(raw)), None)
        if found is None:
            raise self._complain(at, f"the data is no {named}", "invalid_value")
        digest = sha256(raw).hexdigest()
        return {"kind": kind, "type": found, "bytes": len(raw), "sha256": digest}

    def _decoded(self, data: str, at: str) -> bytes:
        most = self._limits.max_media_bytes
        if len(data) // 4 * 3 > most + 2:
            raise self._complain(at, f"more than {most} bytes", "string_above_max_length")
        try:
            raw = b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise self._complain(at, "expected base64", "invalid_value") from None
        if len(raw) > most:
            raise self._complain(at, f"more than {most} bytes", "string_above_max_length")
        return raw


def refused(kind: str, param: str, complain: Complaint = invalid) -> InvalidRequest:
    """The error for a part that the model does not take."""
    if complain is invalid:
        return InvalidRequest(
            f"This model does not take {kind} content.", param=param, code=_UNSUPPORTED
        )
    return complain(param, f"this model does not take {kind} content", _UNSUPPORTED)
