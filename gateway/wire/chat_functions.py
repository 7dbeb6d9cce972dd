"""The old `functions` of chat completions, as the `tools` that took their place.

Requests are put into the form of tools at the edge, so that everything behind it, templates too,
knows that form alone; `functions_encoder` tells the reply in the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.records import Message
from gateway.wire.chat_messages import checked_function
from gateway.wire.chat_tool_choice import Tools
from gateway.wire.json_body import invalid

#: Clients of the old form are never told the ids of calls, and send none back: with this they are
#: not taken for ids that could come back.
UNTOLD_PREFIX = "function_"


def functions_as_tools(functions: Sequence[dict[str, Any]], most: int) -> Tools:
    """Tools that are the functions, unchanged. Raises InvalidRequest."""
    if len(functions) > most:
        raise invalid(
            "functions", f"at most {most} functions are allowed", "array_above_max_length"
        )
    for index, function in enumerate(functions):
        checked_function(function, f"functions[{index}]")
    return tuple({"type": "function", "function": function} for function in functions)


def function_choice(
    choice: str | Mapping[str, Any] | None, tools: Tools
) -> tuple[str, tuple[str, ...]]:
    """(`auto`, `none` or `required`, the names of which a call must be; none means any).

    `tools` are those that the functions became. Raises InvalidRequest.
    """
    if choice is None or choice in ("auto", "none"):
        return str(choice or "auto"), ()
    if isinstance(choice, str):
        raise invalid("function_call", "supported values are 'auto', 'none' and an object")
    name = choice.get("name")
    if not isinstance(name, str) or not name:
        raise invalid("function_call.name", "expected the name of a function")
    if name not in {tool["function"]["name"] for tool in tools}:
        raise invalid("function_call", f"there is no function {name!r} in 'functions'")
    return "required", (name,)


def functions_as_calls(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Checked messages whose calls and results are those of tools.

    Ids are numbers, in the form that the strictest of templates takes: the same history has the
    same ones whenever it is sent.
    """
    found: list[Message] = []
    calls = 0
    for message in messages:
        if call := message.get("function_call"):
            calls += 1
            told = {"id": _id(calls), "type": "function", "function": call}
            found.append(_with_call(message, told))
        elif message["role"] == "function":
            found.append(_with_id(message, _id(calls)))
        else:
            found.append(message)
    return tuple(found)


def _with_call(message: Message, call: Mapping[str, Any]) -> Message:
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [*(message.get("tool_calls") or ()), call]}


def _with_id(message: Message, id_: str) -> Message:
    """A result, of the call with that id."""
    content = message.get("content")
    told = "" if content is None else content
    return {**message, "role": "tool", "tool_call_id": id_, "content": told}


def _id(number: int) -> str:
    return f"call{number:05d}"
