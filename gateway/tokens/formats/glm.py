"""GLM 4.5 and later: the name, then `<arg_key>` and `<arg_value>` for each argument."""

from __future__ import annotations

import re

from gateway.tokens.formats.parameters import ParameterCalls

GLM = ParameterCalls(
    name="glm",
    open="<tool_call>",
    close="</tool_call>",
    head=re.compile(r"\s*(?P<name>[^\s<]+)\s*(?=<arg_key>|</tool_call>)"),
    key=re.compile(r"<arg_key>(?P<key>[^<>]+)</arg_key>\s*<arg_value>"),
    value_end="</arg_value>",
    signs=("<arg_key>", "<arg_value>"),
    begin="<tool_call>NAME\n",
    end="\n</tool_call>",
    style="glm_xml",
    inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    one_call_stops=("</tool_call>",),
)
