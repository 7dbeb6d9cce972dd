"""The part of the OpenAPI document that agents see, by schemathesis with all that it checks.

The same cases as in the proof of operations; `WIRE_EXAMPLES` says how many an operation has.
"""

from __future__ import annotations

import os

import pytest

from tests.fixtures_gateway import Gateway
from tests.proof.operate.test_document import PARTS, held, operated, world

__all__ = ["operated", "world"]

_PATHS, _EXAMPLES, _LEAST = PARTS["agent"]
EXAMPLES = int(os.environ.get("WIRE_EXAMPLES", _EXAMPLES))


@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("world")
async def test_what_agents_see_of_the_document_holds(operated: Gateway) -> None:
    generated = await held(operated.url, operated.keys.agent, _PATHS, EXAMPLES)
    assert generated >= _LEAST * EXAMPLES / _EXAMPLES
