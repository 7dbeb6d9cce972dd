"""What an engine is told to enforce, in the form of xgrammar's structural tags.

Calls are forced in Hermes form, which `reply_format` reads, whatever the model was trained on. A
model that reasons first may still do so: what is enforced begins after `</think>`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.tokens.reply_format import CALL, CALL_END, THINK, THINK_END, ReplyFormat

Tools = Sequence[Mapping[str, Any]]
Format = dict[str, Any]

_NO_ARGUMENTS = {"type": "object", "properties": {}}


def enforced(
    grammar: Mapping[str, Any] | None,
    tools: Tools,
    form: ReplyFormat,
    *,
    required: bool,
    allowed: Collection[str] = (),
    parallel: bool = True,
) -> tuple[Mapping[str, Any] | None, ReplyFormat]:
    """(the grammar to sample under, the form that the reply will have).

    `grammar` is the client's own, for replies that are no calls. With `required`, a reply is one
    call or, if `parallel`, several, of the `allowed` tools (of all where none is named).
    """
    if required:
        form = replace(form, tools=True)
        chosen = [tool for tool in tools if not allowed or tool["function"]["name"] in allowed]
        return _tagged(_calls(chosen, parallel=parallel), form), form
    if grammar is None or "json_schema" not in grammar or not (form.tools or form.think):
        return grammar, form
    body: Format = {"type": "json_schema", "json_schema": json.loads(grammar["json_schema"])}
    if form.tools and tools:
        body = {"type": "or", "elements": [body, _calls(tools, parallel=parallel)]}
    return _tagged(body, form), form


def _calls(tools: Tools, *, parallel: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "separator": "\n",
        "tags": [_call(tool["function"]) for tool in tools],
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def _call(function: Mapping[str, Any]) -> Format:
    name = json.dumps(function["name"], ensure_ascii=False)
    return {
        "type": "tag",
        "begin": f'{CALL}\n{{"name": {name}, "arguments": ',
        "content": {
            "type": "json_schema",
            "json_schema": function.get("parameters") or _NO_ARGUMENTS,
        },
        "end": f"}}\n{CALL_END}",
    }


def _tagged(body: Format, form: ReplyFormat) -> dict[str, Any]:
    if form.think:
        reasoned = {
            "type": "sequence",
            "elements": [
                {
                    "type": "tag",
                    "begin": "" if form.prefilled else THINK,
                    "content": {"type": "any_text"},
                    "end": THINK_END,
                },
                {"type": "const_string", "value": "\n\n"},
                body,
            ],
        }
        body = reasoned if form.prefilled else {"type": "or", "elements": [reasoned, body]}
    return {"structural_tag": {"type": "structural_tag", "format": body}}
