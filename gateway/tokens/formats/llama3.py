"""Llama 3.1, 3.2 and 3.3: a reply that is a JSON object, or one after `<|python_tag|>`.

Several calls stand one after the other, parted by semicolons.
"""

from __future__ import annotations

from gateway.tokens.formats.listed import ListedCalls

LLAMA3 = ListedCalls(
    name="llama3",
    mark="<|python_tag|>",
    signs=("<|python_tag|>", "ipython"),
    bare=True,
    key="parameters",
    separator="; ",
    # No JSON holds these characters in this order, inside its strings or outside.
    one_call_stops=('; {"name"', ';{"name"'),
)
