"""What `POST /v1/completions` takes as its prompt: one or several, of text or token ids."""

from __future__ import annotations

from typing import Any

from gateway.wire.json_body import invalid, missing

#: A text, or token ids [P].
Prompt = str | tuple[int, ...]

_AT = "prompt"


def checked_prompts(prompt: str | list[Any] | None) -> tuple[Prompt, ...]:
    """The prompts, at least one; ids are not looked up yet. Raises InvalidRequest."""
    if prompt is None:
        raise missing(_AT)
    if isinstance(prompt, str) or not _are_prompts(prompt):
        return (_checked(prompt, _AT),)
    if len(prompt) == 1:
        return (_checked(prompt[0], _AT),)
    return tuple(_checked(one, f"{_AT}[{index}]") for index, one in enumerate(prompt))


def _are_prompts(items: list[Any]) -> bool:
    """Whether these are prompts of one form, not the ids of one prompt."""
    return bool(items) and any(
        all(isinstance(item, kind) for item in items) for kind in (str, list)
    )


def _checked(prompt: str | list[Any], at: str) -> Prompt:
    if not prompt:
        raise invalid(at, "expected at least one token", "empty_array")
    if isinstance(prompt, str):
        return prompt
    if all(type(id_) is int for id_ in prompt):
        return tuple(prompt)
    raise invalid(
        at, "expected a string, an array of token ids, or an array of one or the other",
        "invalid_type",
    )  # fmt: skip
