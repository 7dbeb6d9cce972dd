"""Mistral: a name and its arguments in newer models, a JSON list of calls in older ones."""

from __future__ import annotations

import re

from gateway.tokens.formats.listed import ListedCalls
from gateway.tokens.formats.tagged import TaggedCalls

_OPEN, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

MISTRAL = TaggedCalls(
    name="mistral",
    open=_OPEN,
    close=None,
    head=re.compile(r"\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\][^\[{]*)?\[ARGS\]\s*(?=\{)"),
    sign=_ARGUMENTS,
    begin=f"{_OPEN}NAME{_ARGUMENTS}",
    end="",
    inner=(_ARGUMENTS, _CALL_ID),
    one_call_stops=(_OPEN,),
)

MISTRAL_LIST = ListedCalls(
    name="mistral_list",
    mark=_OPEN,
    signs=(_OPEN,),
    bare=False,
    key="arguments",
    separator=", ",
    opening=f"{_OPEN} [",
    closing="]",
    one_call_stops=('}, {"name"', '},{"name"'),
)
