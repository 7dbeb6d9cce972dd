"""What an engine is told to enforce, in the form of xgrammar's structural tags.

Calls are forced in the form that the model's chat template asks for, which is read again as if
unforced. A model that reasons first may still do so: what is enforced begins after that.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.tokens.formats import HERMES, Tag
from gateway.tokens.reply_format import ReplyFormat

Tools = Sequence[Mapping[str, Any]]


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
        calls = form.calls or HERMES
        form = replace(form, calls=calls)
        chosen = [tool for tool in tools if not allowed or tool["function"]["name"] in allowed]
        return _tagged(calls.grammar(chosen, parallel=parallel), form), form
    if grammar is None or "json_schema" not in grammar or not (form.calls or form.think):
        return grammar, form
    body: Tag = {"type": "json_schema", "json_schema": json.loads(grammar["json_schema"])}
    channels = form.calls.untooled if form.calls else None
    if channels:
        body = channels.answered(body)
    if form.calls and tools and channels is not form.calls:
        body = {"type": "or", "elements": [body, form.calls.grammar(tools, parallel=parallel)]}
    return _tagged(body, form), form


def _tagged(body: Tag, form: ReplyFormat) -> dict[str, Any]:
    if form.calls and form.calls.untooled:
        body = form.calls.untooled.after_reasoning(body)
    if form.think:
        thought = form.thought
        gap: list[Tag] = [{"type": "const_string", "value": thought.gap}] if thought.gap else []
        reasoned = {
            "type": "sequence",
            "elements": [
                {
                    "type": "tag",
                    "begin": "" if form.prefilled else thought.open,
                    "content": {"type": "any_text"},
                    "end": thought.close,
                },
                *gap,
                body,
            ],
        }
        body = reasoned if form.prefilled else {"type": "or", "elements": [reasoned, body]}
    return {"structural_tag": {"type": "structural_tag", "format": body}}
