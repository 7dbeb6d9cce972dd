"""The content of an item of the Responses API, as chat messages hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.records import is_media
from gateway.wire.json_body import invalid, missing, text_in
from gateway.wire.media import MediaReader, refused

Content = str | list[dict[str, Any]]

_MEDIA = {"input_image": "image", "input_audio": "audio"}
_TEXT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def content_of(content: object, at: str, media: MediaReader | None) -> Content:
    """Without `media` it may hold text only."""
    if content is None:
        raise missing(at)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(at, "expected a string or an array of parts", "invalid_type")
    parts = [_part(part, f"{at}[{index}]", media) for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts) and len(parts) < 2:
        return parts[0]["text"] if parts else ""
    return parts


def _part(part: object, at: str, media: MediaReader | None) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(at, "expected an object", "invalid_type")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        if media is None:
            raise invalid(f"{at}.type", "only user messages and results hold images and audio")
        media.check(_MEDIA[kind], at)
        if kind == "input_audio":
            return media.audio(part.get(kind), f"{at}.{kind}")
        if part.get("file_id") is not None:
            raise refused("stored image", f"{at}.file_id")
        return media.image(part.get("image_url"), f"{at}.image_url", part.get("detail"))
    if kind == "input_file":
        if media is None or not part.get("file_data"):
            raise refused("file", f"{at}.type")
        return {"type": "text", "text": media.file_text(part["file_data"], f"{at}.file_data")}
    if not isinstance(kind, str) or kind not in _TEXT:
        raise invalid(
            f"{at}.type",
            "supported values are 'input_text', 'output_text', 'input_image' and 'input_audio'",
        )
    key = _TEXT[kind]
    return {"type": key, key: text_in(part, key, at)}


def given(content: object) -> list[dict[str, Any]]:
    """A stored content as parts of an input item; what was not kept of media is left empty."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return [_given(part) for part in parts]


def result_of(content: object) -> Content:
    """A stored tool result as the output of an item."""
    if isinstance(content, list) and any(map(is_media, content)):
        return given(content)
    return plain(content)


def plain(content: object) -> str:
    """The text of a stored content, its parts joined."""
    if isinstance(content, list):
        return "".join(part.get(part["type"]) or "" for part in content)
    return content if isinstance(content, str) else ""


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    if not is_media(part):
        return {"type": "input_text", "text": part.get(part["type"]) or ""}
    if part["type"] == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    image = part.get("image_url") or {}
    return {
        "type": "input_image",
        "image_url": image.get("url"),
        "detail": image.get("detail", "auto"),
    }


def joined(before: Content | None, added: Content) -> Content:
    if before is None:
        return added
    if isinstance(before, str) and isinstance(added, str):
        return before + added
    return [*_parts(before), *_parts(added)]


def _parts(content: Content) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
