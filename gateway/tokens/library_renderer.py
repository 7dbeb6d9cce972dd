"""Renderers of the `renderers` package, for the model families that it knows by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import renderers

from gateway.errors import ConfigError, InvalidRequest
from gateway.records import Message, Trail
from gateway.tokens.call_end import after_last, call_end
from gateway.tokens.marks import Marks
from gateway.tokens.renderer import Extension, Tools, blocked
from gateway.tokens.template import for_template, one_call_each
from gateway.tokens.tokenizer import Tokenizer

Retention = Literal["tool_cycle", "all"]

_VARIANTS = 16
_NOT_FAMILIES = ("auto", "custom", "default")


_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_ASKED: Message = {"role": "user", "content": "u"}
_ONE_CALL = (_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]})
_TWO_CALLS = (_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL, _CALL]})


class LibraryRenderer:
    """Renders and extends through one renderer of the package, chosen by name.

    `retention` says which old reasoning stays in the prompt: None is what the model's template
    does, `all` keeps every reply as it was sampled and so never needs a branch for it.
    """

    uses_tools = True
    marks: Marks = {}  # noqa: RUF012 - text alone

    def __init__(
        self, tokenizer: Tokenizer, family: str, retention: Retention | None = None
    ) -> None:
        try:
            config = renderers.config_from_name(family)
        except ValueError:
            config = None
        if config is None or family in _NOT_FAMILIES:
            raise ConfigError(f"model.renderer: there is no renderer named {family!r}")
        self.name = family
        self._config = type(config)
        self._retention = retention
        self._tokenizer = tokenizer
        self._adapter = _Adapter(tokenizer)
        self._known = renderers.template_field_names(config)
        self._variant = lru_cache(maxsize=_VARIANTS)(self._build)
        self._one_call = self._refuses(_TWO_CALLS) and not self._refuses(_ONE_CALL)

    def render(
        self, messages: Sequence[Message], tools: Tools, template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        renderer = self._choose(template_kwargs)
        try:
            ids: list[int] = renderer.render_ids(
                _adapted(one_call_each(messages) if self._one_call else messages),
                tools=_tools(tools),
                add_generation_prompt=True,
            )
        except (ValueError, KeyError, TypeError, NotImplementedError) as error:
            raise InvalidRequest(
                f"These messages cannot be rendered for this model: {error}", param="messages"
            ) from None
        return ids

    def extend(
        self,
        trail: Trail,
        new_messages: Sequence[Message],
        messages: Sequence[Message],
        tools: Tools,
        template_kwargs: Mapping[str, Any],
    ) -> Extension:
        if reason := blocked(trail, new_messages):
            return Extension(reason=reason)
        renderer = self._choose(template_kwargs)
        previous = [*trail.prompt_ids, *trail.sampled_ids]
        end = None
        if not trail.sampled_ids or trail.sampled_ids[-1] not in renderer.get_stop_token_ids():
            end = call_end(self._tokenizer, trail.sampled_ids)
            if end is None:
                return Extension(reason="parent_not_closed")
        named = _named(new_messages, messages)
        try:
            bridged = renderer.bridge_to_next_turn(
                list(trail.prompt_ids),
                list(trail.sampled_ids),
                _adapted(named),
                tools=_tools(tools),
            )
        except (ValueError, KeyError, TypeError, NotImplementedError):
            bridged = None
        if bridged is None:
            asks = any(message["role"] == "user" for message in new_messages)
            return Extension(
                reason="template_dropped_reasoning" if asks else "template_not_append_only"
            )
        ids = list(bridged.token_ids)
        if ids[: len(previous)] != previous:
            return Extension(reason="template_not_append_only")
        added = ids[len(previous) :]
        if end is not None:
            # The package closes any reply in one way, which need not be how a call is closed.
            whole = self._tokenizer.decode(self.render(messages, tools, template_kwargs))
            if after_last(end, whole) != after_last(end, end + self._tokenizer.decode(added)):
                return Extension(reason="parent_not_closed")
        return Extension(trail=trail, added=added)

    def _refuses(self, messages: Sequence[Message]) -> bool:
        try:
            self._choose({}).render_ids(_adapted(messages), add_generation_prompt=True)
        except (ValueError, KeyError, TypeError, NotImplementedError):
            return True
        return False

    def _choose(self, kwargs: Mapping[str, Any]) -> renderers.Renderer:
        used = {name: kwargs[name] for name in sorted(self._known) if name in kwargs}
        try:
            return self._variant(json.dumps(used, sort_keys=True))
        except (ValueError, TypeError) as error:
            if not used:
                raise ConfigError(f"renderer {self.name} cannot be used: {error}") from None
            raise InvalidRequest(
                f"chat_template_kwargs: {error}", param="chat_template_kwargs"
            ) from None

    def _build(self, kwargs: str) -> renderers.Renderer:
        config = self._config(thinking_retention=self._retention, **json.loads(kwargs))
        try:
            return renderers.create_renderer(self._adapter, config)
        except (AssertionError, ImportError, AttributeError) as error:
            raise ConfigError(
                f"renderer {self.name} does not fit this model's tokenizer: {error}"
            ) from None


class _Adapter:
    """The tokenizer surface that the package asks for."""

    name_or_path = ""
    unk_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.facts.stop_token_ids[0]
        self.chat_template = tokenizer.chat_template

    def encode(self, text: str, *_: object, **__: object) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, ids: int | Sequence[int], *_: object, **options: object) -> str:
        skip = self._tokenizer.special_ids if options.get("skip_special_tokens") else frozenset()
        return self._tokenizer.decode([ids] if isinstance(ids, int) else ids, skip=skip)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            return self._tokenizer.id_of(tokens)
        return [self._tokenizer.id_of(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        if isinstance(ids, int):
            return self._tokenizer.token_of(ids)
        return [self._tokenizer.token_of(id_) for id_ in ids]


def _adapted(messages: Sequence[Message]) -> list[Any]:
    return [for_template(message) for message in messages]


def _tools(tools: Tools) -> list[Any] | None:
    return [dict(tool) for tool in tools] or None


def _named(new_messages: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """New tool results with the name of the function that was called, which some formats write."""
    reply = messages[len(messages) - len(new_messages) - 1]
    names = {call["id"]: call["function"]["name"] for call in reply.get("tool_calls") or ()}
    return [
        {**message, "name": names[message["tool_call_id"]]}
        if message["role"] == "tool" and message.get("tool_call_id") in names
        else message
        for message in new_messages
    ]
