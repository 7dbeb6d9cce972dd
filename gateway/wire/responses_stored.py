"""What is stored of a request so that its response can be read again as it was, and that again.

What other columns have stands here only as far as it differs: tools are told by the names of the
functions that are stored of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.records import INSTRUCTIONS, Usage

Fields = dict[str, Any]
Functions = Mapping[str, Mapping[str, Any]]

#: Bytes of all that is stored of one request beside its instructions, and of those.
MOST_BYTES = 64 * 1024
#: What stands among the fields for the reply.
_NOT_REPEATED = ("usage", "include", "top")

_pack = msgspec.msgpack.Encoder().encode


def to_store(
    said: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], include: Sequence[str] = ()
) -> Fields:
    """What a request `said` of the fields that its response repeats; `tools` in chat form.

    `include` is what its reply shows beside, which is not repeated.
    The largest ones are left out where all together are too many bytes.
    """
    fields = {**said, "include": [*include]} if include else dict(said)
    if "tools" in fields:
        fields["tools"] = _packed(fields["tools"], _by_name(tools))
    instructions = fields.pop(INSTRUCTIONS, None)
    sizes = {name: _size(value) for name, value in fields.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total > MOST_BYTES:
            total -= sizes[name]
            del fields[name]
    if instructions is not None:
        # Those of a first turn stand in its messages, whatever their length.
        fields[INSTRUCTIONS] = instructions if _size(instructions) <= MOST_BYTES else True
    return fields


def restored(fields: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Fields:
    """What the request said, as far as it is stored; `tools` are the turn's own, in chat form."""
    said = {name: value for name, value in fields.items() if name not in _NOT_REPEATED}
    if "tools" in said:
        said["tools"] = _unpacked(said["tools"], _by_name(tools))
    return said


def told_usage(fields: Mapping[str, Any], counted: Usage) -> Usage:
    """The usage that the client was told; the prompt and the reply are `counted` by their ids."""
    match fields.get("usage"):
        case [int(prompt), int(completion)]:
            return msgspec.structs.replace(
                counted, prompt_tokens=prompt, completion_tokens=completion
            )
    return counted


def _size(value: object) -> int:
    """Bytes in the spool; more than any for what has no form there."""
    try:
        return len(_pack(value))
    except (OverflowError, ValueError):
        return MOST_BYTES + 1


def _by_name(tools: Sequence[Mapping[str, Any]]) -> Functions:
    return {tool["function"]["name"]: tool["function"] for tool in tools}


def _packed(tools: Sequence[Fields], functions: Functions) -> Fields | list[Any]:
    """Where the tools are the functions, one by one, what each says beside them; else a list.

    In the list [name, what it says beside] stands for a function; other tools are as they are.
    """
    packed = [_packed_tool(tool, functions) for tool in tools]
    if packed and len(tools) == len(functions):
        rests: list[Fields] = [one[1] for one in packed if isinstance(one, list)]
        if len(rests) == len(packed) and all(rest == rests[0] for rest in rests):
            return rests[0]
    return packed


def _packed_tool(tool: Fields, functions: Functions) -> Fields | list[Any]:
    if tool.get("type") == "namespace" and tool.get("tools"):
        return {**tool, "tools": [_packed_function(one, functions) for one in tool["tools"]]}
    return _packed_function(tool, functions)


def _packed_function(tool: Fields, functions: Functions) -> Fields | list[Any]:
    if tool.get("type") == "function":
        known = functions.get(tool["name"])
        # Of several of one name only one is stored.
        if known is not None and all(tool.get(key) is value for key, value in known.items()):
            rest = {key: tool[key] for key in tool if key not in known and key != "type"}
            return [tool["name"], rest]
    return tool


def _unpacked(packed: object, functions: Functions) -> list[Fields]:
    if isinstance(packed, dict):
        return [{"type": "function", **function, **packed} for function in functions.values()]
    return [_unpacked_tool(one, functions) for one in packed] if isinstance(packed, list) else []


def _unpacked_tool(packed: Any, functions: Functions) -> Fields:
    tool = _unpacked_function(packed, functions)
    if tool.get("type") == "namespace" and tool.get("tools"):
        return {**tool, "tools": [_unpacked_function(one, functions) for one in tool["tools"]]}
    return tool


def _unpacked_function(packed: Any, functions: Functions) -> Fields:
    if isinstance(packed, list):
        name, rest = packed
        return {"type": "function", **functions.get(name, {"name": name}), **rest}
    tool: Fields = packed
    return tool
