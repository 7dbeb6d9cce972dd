"""Kimi K2: the name stands in an id such as `functions.look:0`."""

from __future__ import annotations

import re

from gateway.tokens.formats.tagged import TaggedCalls

_OPEN, _CLOSE = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENT = "<|tool_call_argument_begin|>"
_ALL, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

KIMI_K2 = TaggedCalls(
    name="kimi_k2",
    open=_OPEN,
    close=_CLOSE,
    head=re.compile(
        r"\s*(?:functions\.)?(?P<name>[^\s:{<]+)(?::\d+)?\s*" + re.escape(_ARGUMENT) + r"\s*(?=\{)"
    ),
    sign=_ARGUMENT,
    begin=f"{_OPEN}functions.NAME:",
    numbered=_ARGUMENT,
    end=_CLOSE,
    opening=_ALL,
    closing=_ALL_END,
    wrappers=(_ALL, _ALL_END),
    inner=(_ARGUMENT,),
    one_call_stops=(_CLOSE,),
)
