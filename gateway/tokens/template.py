"""Hugging Face chat templates: jinja2 in a sandbox, with the names that templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import ConfigError, InvalidRequest
from gateway.records import Message


class _Generation(Extension):
    """`{% generation %}` marks trained text in some templates; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _called(arguments: object) -> list[Message]:
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    return [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "r"},
    ]


#: Most templates write arguments with `tojson`; a few put the text together themselves.
_CALLED = _called({"x": "1"})
_CALLED_IN_TEXT = _called('{"x": "1"}')


class ChatTemplate:
    """One compiled chat template. `render` gives the text that a model is prompted with."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template cannot be compiled: {error}") from None
        self._special_tokens = dict(special_tokens)
        self.source = source
        self._takes_objects = self._shows(_CALLED) or not self._shows(_CALLED_IN_TEXT)

    def adapt(self, message: Message) -> dict[str, Any]:
        """A message in the form that this template reads."""
        return for_template(message, objects=self._takes_objects)

    def _shows(self, messages: Sequence[Message]) -> bool:
        try:
            self.render(messages, generate=True, kwargs={})
        except InvalidRequest:
            return False
        return True

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        generate: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt text, with the opening of the next reply if `generate`.

        Raises InvalidRequest where the template refuses these messages.
        """
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **kwargs,
                    "messages": messages,
                    "tools": list(tools) or None,
                    "documents": kwargs.get("documents"),
                    "add_generation_prompt": generate,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages: {error}",
                param="messages",
            ) from None
        except RecursionError:
            raise InvalidRequest("The request is nested too deeply.", param="messages") from None


def for_template(message: Message, *, objects: bool = True) -> dict[str, Any]:
    """A message as templates read it: content a string, tool arguments decoded if `objects`.

    Arguments that are no JSON object stay text. A developer message is a system message.
    """
    adapted = dict(message)
    if message["role"] == "developer":
        adapted["role"] = "system"
    content = message.get("content")
    if content is None:
        adapted["content"] = ""
    elif not isinstance(content, str):
        adapted["content"] = "".join(part[part["type"]] for part in content)
    calls = message.get("tool_calls")
    if not calls:
        adapted.pop("tool_calls", None)
    elif objects:
        adapted["tool_calls"] = [_decoded(call) for call in calls]
    return adapted


def _decoded(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face writes it: jinja2's own filter would escape HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
