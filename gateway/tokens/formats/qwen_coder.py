"""Qwen3-Coder and Qwen 3.5: `<function=…>` with a `<parameter=…>` for each argument."""

from __future__ import annotations

import re

from gateway.tokens.formats.parameters import ParameterCalls

QWEN_CODER = ParameterCalls(
    name="qwen_coder",
    open="<tool_call>",
    close="</tool_call>",
    head=re.compile(r"\s*<function=(?P<name>[^<>\s]+)>"),
    key=re.compile(r"<parameter=(?P<key>[^<>\s]+)>"),
    value_end="</parameter>",
    signs=("<function=", "<parameter="),
    begin="<tool_call>\n<function=NAME>\n",
    end="\n</function>\n</tool_call>",
    style="qwen_xml",
    trim=True,
    one_call_stops=("</tool_call>",),
)
