"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Qwen 2.5 and 3, Hermes, SmolLM."""

from __future__ import annotations

from gateway.tokens.formats.json_call import HEAD, spelled_name, whole_call
from gateway.tokens.formats.tagged import TaggedCalls

HERMES = TaggedCalls(
    name="hermes",
    open="<tool_call>",
    close="</tool_call>",
    head=HEAD,
    spelled=spelled_name,
    unordered=whole_call,
    sign="<tool_call>",
    begin='<tool_call>\n{"name": NAME, "arguments": ',
    end="}\n</tool_call>",
    quoted=True,
    separator="\n",
    one_call_stops=("</tool_call>",),
)
