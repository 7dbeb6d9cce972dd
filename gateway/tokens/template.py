"""Hugging Face chat templates: jinja2 in a sandbox, with the names that templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.ext import Extension, loopcontrols

from gateway.errors import ConfigError, InvalidRequest
from gateway.records import DESCRIBED, Message, is_media
from gateway.tokens.formats import HERMES
from gateway.tokens.sandbox import Sandbox


class _Generation(Extension):
    """`{% generation %}` marks trained text in some templates; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _called(*arguments: object) -> list[Message]:
    ids = [f"call{index:05d}" for index in range(len(arguments))]
    calls = [
        {"id": id_, "type": "function", "function": {"name": _NAME, "arguments": one}}
        for id_, one in zip(ids, arguments, strict=True)
    ]
    return [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id_, "name": _NAME, "content": "r"} for id_ in ids),
    ]


#: How nearly all templates have JSON written; made once, since making it costs what writing does.
_JSON = json.JSONEncoder(ensure_ascii=False)
_NAME = "Fq9"
_SAID = "Zs4"
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
        environment = Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template cannot be compiled: {error}") from None
        # Put together once: globals are a chain of maps, which would be walked at each rendering.
        self._names = {**self._template.globals, **special_tokens, "documents": None}
        self._context = partial(jinja2.runtime.Context, environment)
        self.source = source
        self._takes_strings = True
        self._takes_strings = not self._reads_parts_only()
        shown = self._shown(_CALLED)
        as_text = self._shown(_CALLED_IN_TEXT) if shown is None else None
        self._takes_objects = shown is not None or as_text is None
        #: Calls have no place in the template and are written out as the model wrote them.
        self._writes_calls = _NAME not in (shown or as_text or "")
        arguments: object = {"x": "1"} if self._takes_objects else '{"x": "1"}'
        #: The template refuses a message with several calls.
        self.one_call = bool(shown or as_text) and self._shown(_called(*[arguments] * 2)) is None

    def adapt(self, message: Message) -> dict[str, Any]:
        """A message in the form that this template reads."""
        adapted = for_template(message, objects=self._takes_objects)
        if self._writes_calls and adapted.get("tool_calls"):
            adapted["content"] = "\n".join(
                [*([adapted["content"]] if adapted["content"] else []), *_written(message)]
            )
        return adapted

    def adapt_all(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """A conversation in that form; several calls of a message stand in one each if they must.

        Each is then followed by its own result.
        """
        if self.one_call:
            messages = one_call_each(messages)
        return [
            # What only says something stands in that form already.
            message
            if type(message) is dict
            and type(message.get("content")) is str
            and "tool_calls" not in message
            and message["role"] != "developer"
            else self.adapt(message)
            for message in messages
        ]

    def _reads_parts_only(self) -> bool:
        """Whether a text has to come as a list of one part: some templates of image models."""
        said = [{"role": "user", "content": _SAID}]
        if _SAID in (self._shown(said) or ""):
            return False
        return _SAID in (self._shown([_in_parts(message) for message in said]) or "")

    def _shown(self, messages: Sequence[Message]) -> str | None:
        try:
            return self.render(messages, generate=True, kwargs={})
        except InvalidRequest:
            return None

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
        if not self._takes_strings:
            messages = [_in_parts(message) for message in messages]
        names = {
            **self._names,
            **kwargs,
            "messages": messages,
            "tools": list(tools) or None,
            "add_generation_prompt": generate,
        }
        try:
            # As `new_context` does, but that it lists no globals for what templates might import.
            context = self._context(names, None, self._template.blocks)
            return "".join(self._template.root_render_func(context))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages: {error}",
                param="messages",
            ) from None
        except RecursionError:
            raise InvalidRequest("The request is nested too deeply.", param="messages") from None


def for_template(message: Message, *, objects: bool = True) -> dict[str, Any]:
    """A message as templates read it: content a string, tool arguments decoded if `objects`.

    Content with images or audio stays a list, of texts and of what only says `{"type": "image"}`.
    Arguments that are no JSON object stay text. A developer message is a system message.
    """
    adapted = dict(message)
    if message["role"] == "developer":
        adapted["role"] = "system"
    content = message.get("content")
    if content is None:
        adapted["content"] = ""
    elif isinstance(content, str):
        pass
    elif any(map(is_media, content)):
        adapted["content"] = [
            {"type": part[DESCRIBED]["kind"]}
            if is_media(part)
            else {"type": "text", "text": part[part["type"]]}
            for part in content
        ]
    else:
        adapted["content"] = "".join(part[part["type"]] for part in content)
    calls = message.get("tool_calls")
    if not calls:
        adapted.pop("tool_calls", None)
    elif objects:
        adapted["tool_calls"] = [_decoded(call) for call in calls]
    return adapted


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}] if content else []}


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with one call a message at most, each before its own result."""
    found: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        end = index
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = list(messages[index:end])
        for number, call in enumerate(calls):
            # What was said and thought came before the first call.
            head = message if number == 0 else {"role": "assistant", "content": ""}
            found.append({**head, "tool_calls": [call]})
            own = [one for one in results if one.get("tool_call_id") == call["id"]]
            found += own
            results = [one for one in results if one not in own]
        found += results
        index = end
    return found


def _written(message: Message) -> list[str]:
    return [
        HERMES.begin.replace("NAME", json.dumps(call["function"]["name"], ensure_ascii=False))
        + call["function"]["arguments"]
        + HERMES.end
        for call in message["tool_calls"]
    ]


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
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        return _JSON.encode(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
