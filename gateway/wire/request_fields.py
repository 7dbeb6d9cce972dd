"""Checks of fields that several protocols have, held once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.wire.json_body import check_depth, invalid
from gateway.wire.sampling_fields import between

MODEL_CHARACTERS = 256
MOST_CHOICES = 8
MOST_TOOLS = 512
MOST_TOP_LOGPROBS = 20
#: Names that rendering gives to templates itself.
_RESERVED = ("messages", "tools", "add_generation_prompt")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


def check_model(model: str) -> None:
    """Raises InvalidRequest for a name that no model can have."""
    if not model or len(model) > MODEL_CHARACTERS:
        raise invalid("model", f"expected 1 to {MODEL_CHARACTERS} characters")


def choices_of(n: int) -> int:
    return between("n", n, 1, MOST_CHOICES)


def with_usage(stream: bool | None, options: StreamOptions) -> bool:
    """Whether usage is wanted with the reply that is streamed."""
    if not stream:
        raise invalid("stream_options", "only allowed when 'stream' is true")
    return bool(options.include_usage)


def template_options(given: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """What a template is given beside the messages: `chat_template_kwargs`, and the effort."""
    options = dict(given or {})
    for name in _RESERVED:
        if name in options:
            raise invalid("chat_template_kwargs", f"'{name}' is given by the request itself")
    check_depth(options, "chat_template_kwargs")
    if effort is not None:
        options.setdefault("reasoning_effort", effort)
    return options
