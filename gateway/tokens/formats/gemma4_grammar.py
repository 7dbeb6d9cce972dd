"""A grammar of Gemma 4's arguments from their schema, which the back end has no style for.

Keys stand in the order of the schema; those that are not required may be left out. What a schema
says beyond types, choices and nesting is not enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tokens.formats.typed_values import fields_of

#: A text is what holds no quote: each rule is how much of one has been seen.
_ANY = r"""
value ::= text | number | "true" | "false" | "null" | object | array
object ::= "{" (pair ("," pair)*)? "}"
pair ::= [^{}\[\],:<]+ ":" value
array ::= "[" (value ("," value)*)? "]"
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+\-]? [0-9]+)?
text ::= "<|\"|>" said
said ::= "<" said1 | [^<] said
said1 ::= "|" said2 | "<" said1 | [^|<] said
said2 ::= "\"" said3 | "<" said1 | [^"<] said
said3 ::= "|" said4 | "<" said1 | [^|<] said
said4 ::= ">" | "<" said1 | [^><] said
"""

_TYPES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": '("true" | "false")',
    "null": '"null"',
    "object": "object",
    "array": "array",
}
#: Below that many levels a schema is not followed.
_DEPTH = 16


def arguments_grammar(schema: Mapping[str, Any]) -> str:
    """The rules in EBNF. Arguments are an object, even where the schema does not say so."""
    rules = _Rules()
    root = rules.of_object(schema, 0)
    return "\n".join([f"root ::= {root}", *rules.written]) + _ANY


class _Rules:
    """Every pair of every object is a rule, so that a schema is written once."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def _add(self, body: str) -> str:
        name = f"rule{len(self.written)}"
        self.written.append(f"{name} ::= {body}")
        return name

    def _of(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return "value"
        choices = [schema["const"]] if "const" in schema else _list(schema, "enum")
        if choices:
            return _either([_literal(one) for one in choices])
        for key in ("anyOf", "oneOf"):
            if ways := _list(schema, key):
                return _either([self._of(one, depth + 1) for one in ways])
        types = schema.get("type")
        if isinstance(types, list) and types:
            return _either([self._of({**schema, "type": one}, depth + 1) for one in types])
        if types == "object" and fields_of(schema):
            return self.of_object(schema, depth + 1)
        if types == "array" and isinstance(schema.get("items"), Mapping):
            item = self._add(self._of(schema["items"], depth + 1))
            return f'("[" ({item} ("," {item})*)? "]")'
        return _TYPES.get(types, "value") if isinstance(types, str) else "value"

    def of_object(self, schema: Mapping[str, Any], depth: int) -> str:
        """Its pairs, with commas between those that are there."""
        fields = fields_of(schema)
        if not fields:
            return '("{" "}")' if schema.get("additionalProperties") is False else "object"
        rest, starts = '""', ['""']
        for key, own, required in reversed(fields):
            pair = self._add(f"{_quoted(key + ':')} {self._of(own, depth)}")
            start = f"{pair} {rest}"
            starts = [start] if required else [start, *starts]
            after = f'"," {start}' if required else f'("," {pair})? {rest}'
            rest = self._add(after)
        return f'("{{" {_either(starts)} "}}")'


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _either(choices: Sequence[str]) -> str:
    return "(" + " | ".join(dict.fromkeys(choices)) + ")"


def _literal(value: Any) -> str:
    if isinstance(value, (list, Mapping)):
        return "value"
    return _quoted(f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
