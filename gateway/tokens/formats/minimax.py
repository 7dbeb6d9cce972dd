"""MiniMax M2: `<invoke name="…">` with a `<parameter name="…">` for each argument."""

from __future__ import annotations

import re

from gateway.tokens.formats.parameters import ParameterCalls

MINIMAX_M2 = ParameterCalls(
    name="minimax_m2",
    open="<invoke",
    close="</invoke>",
    head=re.compile(r'\s*name="(?P<name>[^"<>\s]+)">'),
    key=re.compile(r'<parameter name="(?P<key>[^"<>]+)">'),
    value_end="</parameter>",
    signs=("<minimax:tool_call>", "<invoke"),
    begin='<invoke name="NAME">\n',
    end="\n</invoke>",
    style="minimax_xml",
    opening="<minimax:tool_call>\n",
    closing="\n</minimax:tool_call>",
    wrappers=("<minimax:tool_call>", "</minimax:tool_call>"),
    one_call_stops=("</invoke>",),
)
