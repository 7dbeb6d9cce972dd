"""When an engine is drained, by what gateways report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gateway.store.drains import Drains, standing

ENTRY = {"since": 5.0, "reason": "a new driver", "by": "cli"}
DRAINS = Drains(engines={"a": ENTRY})


@dataclass(frozen=True)
class Report:
    id: int
    detail: dict[str, Any]


def report(id_: int, since: float | None, **requests: int) -> Report:
    engines = [{"name": name, "healthy": True, "requests": n} for name, n in requests.items()]
    return Report(id_, {"engines": engines, "drains": {} if since is None else {"a": since}})


OLD = Report(9, {"engines": [{"name": "a", "healthy": True}]})


@pytest.mark.parametrize(
    ("gateways", "drained", "requests"),
    [
        ([report(1, 5.0, a=0), report(2, 5.0, a=0, b=7)], True, 0),
        # One has a request left there.
        ([report(1, 5.0, a=0), report(2, 5.0, a=2)], False, 2),
        # One has not heard of it, or of an earlier draining only.
        ([report(1, 5.0, a=0), report(2, None, a=0)], False, 0),
        ([report(1, 5.0, a=0), report(2, 4.0, a=0)], False, 0),
        # One is of a release that knows of no draining.
        ([report(1, 5.0, a=3), OLD], False, 3),
        # Nobody has it, or whoever has not heard of it does not.
        ([], True, 0),
        ([report(1, 5.0, a=0), report(2, None, b=1)], True, 0),
    ],
)
def test_an_engine_is_drained_where_every_gateway_that_has_it_keeps_off_it(
    gateways: list[Report], drained: bool, requests: int
) -> None:
    found = {one["name"]: one for one in standing(DRAINS, gateways)}
    assert (found["a"]["draining"], found["a"]["drained"]) == (True, drained)
    assert found["a"]["requests"] == requests
    assert {name: found["a"][name] for name in ENTRY} == ENTRY
    if "b" in found:
        assert (found["b"]["draining"], found["b"]["drained"], found["b"]["since"]) == (
            False,
            False,
            None,
        )


def test_where_nothing_drains_requests_of_all_gateways_are_counted() -> None:
    [a, b] = standing(Drains(), [report(2, None, b=1, a=2), report(1, 5.0, a=3)])
    assert (a["name"], a["requests"], b["name"], b["requests"]) == ("a", 5, "b", 1)
    # One has not heard that it was resumed.
    assert [at["draining"] for at in a["gateways"]] == [False, True]
    assert (a["draining"], a["drained"]) == (False, False)
