"""Hunyuan 3: GLM's arguments with a separator after the name, and tags that end in a suffix.

Its template spells the tags as `<tool_sep{}>` and puts the suffix in; a preview has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.tokens.formats.base import Tag, Thought
from gateway.tokens.formats.parameters import ParameterCalls
from gateway.tokens.formats.typed_values import fields_of, is_string

_SUFFIX = ":opensource"


class _Arguments:
    """The arguments of a forced call, in the order of the schema.

    The grammar back end knows such tags without a suffix only, so they are put together here.
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __call__(self, schema: Mapping[str, Any]) -> Tag:
        elements: list[Tag] = [{"type": "const_string", "value": ""}]
        for key, own, required in fields_of(schema):
            argument = self._argument(key, _value(schema, key, own))
            elements.append(argument if required else {"type": "optional", "content": argument})
        return {"type": "sequence", "elements": elements}

    def _argument(self, key: str, content: Tag) -> Tag:
        suffix = self._suffix
        return {
            "type": "tag",
            "begin": f"<arg_key{suffix}>{key}</arg_key{suffix}>\n<arg_value{suffix}>",
            "content": content,
            "end": f"</arg_value{suffix}>\n",
        }


def _value(schema: Mapping[str, Any], key: str, own: Any) -> Tag:
    if not is_string(schema, key):
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        body = {**own, **shared} if isinstance(own, Mapping) else {}
        return {"type": "json_schema", "json_schema": body}
    choices = own.get("enum")
    if not isinstance(choices, list) or not choices:
        return {"type": "any_text"}
    written = [one if isinstance(one, str) else json.dumps(one) for one in choices]
    return {
        "type": "or",
        "elements": [{"type": "const_string", "value": one} for one in written],
    }


def _hunyuan(name: str, suffix: str, *signs: str) -> ParameterCalls:
    def tags(name: str) -> tuple[str, str]:
        return f"<{name}{suffix}>", f"</{name}{suffix}>"

    all_calls, call, key, value, think = map(
        tags, ("tool_calls", "tool_call", "arg_key", "arg_value", "think")
    )
    separator = f"<tool_sep{suffix}>"
    return ParameterCalls(
        name=name,
        open=call[0],
        close=call[1],
        head=re.compile(rf"\s*(?P<name>[^\s<]+)\s*(?:{separator}|(?={key[0]}|{call[1]}))"),
        key=re.compile(rf"{key[0]}(?P<key>[^<>]+){key[1]}\s*{value[0]}"),
        value_end=value[1],
        signs=("<tool_sep", *signs),
        begin=f"{call[0]}NAME{separator}\n",
        end=call[1],
        content=_Arguments(suffix),
        opening=all_calls[0] + "\n",
        closing="\n" + all_calls[1],
        wrappers=all_calls,
        inner=(separator, *key, *value),
        one_call_stops=(call[1],),
        thought=Thought(open=think[0], close=think[1], sign="</think", marks=think, gap=""),
    )


HY3 = _hunyuan("hy3", _SUFFIX, _SUFFIX)
HY3_PREVIEW = _hunyuan("hy3_preview", "")
