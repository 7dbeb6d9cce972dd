"""DeepSeek V3.2 and V4: `invoke` and `parameter` tags around a token of their own.

A parameter says itself whether it is text. The tag around all calls is no token, so it is told
from text by its letters.
"""

from __future__ import annotations

import re

from gateway.tokens.formats.parameters import ParameterCalls

_MARK = "\uff5cDSML\uff5c"
_OPEN, _CLOSE, _VALUE_END = (
    f"<{_MARK}invoke",
    f"</{_MARK}invoke>",
    f"</{_MARK}parameter>",
)


def _dsml(name: str, calls: str) -> ParameterCalls:
    around = (f"<{_MARK}{calls}>", f"</{_MARK}{calls}>")
    return ParameterCalls(
        name=name,
        open=_OPEN,
        close=_CLOSE,
        head=re.compile(r'\s*name="(?P<name>[^"<>]+)">'),
        key=re.compile(
            rf'<{_MARK}parameter name="(?P<key>[^"<>]+)"(?:\s+string="(?P<string>true|false)")?>'
        ),
        value_end=_VALUE_END,
        signs=(_MARK, calls),
        begin=f'{_OPEN} name="NAME">\n',
        end=f"\n{_CLOSE}",
        style="deepseek_xml",
        opening=around[0] + "\n",
        closing="\n" + around[1],
        inner=(_MARK,),
        dropped=around,
        one_call_stops=(_CLOSE,),
    )


#: Its template speaks of `tool_calls` as well, where it reads messages.
DSML_V32 = _dsml("dsml_v32", "function_calls")
DSML_V4 = _dsml("dsml_v4", "tool_calls")
