"""DeepSeek V3, R1 and V3.1: the first two fence the arguments as Markdown, the last does not."""

from __future__ import annotations

import re

from gateway.tokens.formats.tagged import TaggedCalls

_OPEN, _CLOSE = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_ALL, _ALL_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)

DEEPSEEK_V3 = TaggedCalls(
    name="deepseek_v3",
    open=_OPEN,
    close=_CLOSE,
    head=re.compile(rf"\s*function{_SEPARATOR}(?P<name>[^\n{{<]+)\n```json\s*(?=\{{)"),
    sign="function" + _SEPARATOR,
    begin=f"{_OPEN}function{_SEPARATOR}NAME\n```json\n",
    end=f"\n```{_CLOSE}",
    separator="\n",
    opening=_ALL,
    closing=_ALL_END,
    wrappers=(_ALL, _ALL_END),
    inner=(_SEPARATOR,),
    one_call_stops=(_CLOSE,),
)

DEEPSEEK_V31 = TaggedCalls(
    name="deepseek_v31",
    open=_OPEN,
    close=_CLOSE,
    head=re.compile(rf"\s*(?P<name>[^\n{{<]+){_SEPARATOR}\s*(?=\{{)"),
    sign=_SEPARATOR,
    begin=f"{_OPEN}NAME{_SEPARATOR}",
    end=_CLOSE,
    opening=_ALL,
    closing=_ALL_END,
    wrappers=(_ALL, _ALL_END),
    inner=(_SEPARATOR,),
    one_call_stops=(_CLOSE,),
)
