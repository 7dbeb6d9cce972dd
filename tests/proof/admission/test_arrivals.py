"""100,000 arrivals at admission: real code, virtual time, several gateways on one set of counts.

What was found is in `build/proof/admission/`, a file a case.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from tests.admission import World, off

ARRIVALS = 100_000
_REPORTS = Path("build/proof/admission")

# More clients than can be trained on; the longest line that Retry-After can tell; slow versions.
_CASES = [
    {"gateways": 4, "clients": 64, "step_s": 6.0},
    {"gateways": 8, "clients": 150, "step_s": 6.0},
    {"gateways": 2, "clients": 40, "step_s": 12.0},
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", _CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_arrivals(case: dict[str, float]) -> None:
    world = World(seed=1, **case)  # type: ignore[arg-type]
    found = world.run(ARRIVALS)
    first, every, places = off(found.waits), off(found.every), off(found.places)
    told = [pair[0] for pair in found.waits]
    with_room = sum(n for left, n in found.capacity_when_refused.items() if left > 0)
    report = {
        **case,
        "arrivals": found.arrivals,
        "refused": found.refused,
        "refused_with_room": with_room,
        "most_room_when_refused": max(found.capacity_when_refused),
        "opened_without_room": sum(n for over, n in found.overshoot.items() if over),
        "most_over": max(found.overshoot),
        "beyond_the_stated_error": len(found.wrong),
        "lags": {str(lag): n for lag, n in sorted(found.lags.items())},
        "dropped_as_stale": found.dropped,
        # From a client's first refusal until it was let in, and from every refusal.
        "retry_after_off_median": round(median(first), 4),
        "retry_after_off_p90": round(first[int(0.9 * len(first))], 4),
        "retry_after_off_every_median": round(median(every), 4),
        "retry_after_off_every_p90": round(every[int(0.9 * len(every))], 4),
        # From every refusal until there was a place, which shows what was told too long, too.
        "retry_after_off_place_median": round(median(places), 4),
        "retry_after_off_place_p90": round(places[int(0.9 * len(places))], 4),
        "told_too_long": round(sum(t > w for t, w in found.places) / len(places), 4),
        "came_back_in_vain": round(sum(w > t + 1 for t, w in found.waits) / len(told), 4),
        "retry_after_median_s": median(told),
        "retry_after_longest_s": found.longest_told,
        "trainer_idle_share": round(found.trainer_idle_s / found.ended_at, 4),
        "virtual_hours": round(found.ended_at / 3600, 2),
    }
    _REPORTS.mkdir(parents=True, exist_ok=True)
    name = "-".join(map(str, case.values()))
    (_REPORTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    # What is known of the line, and what was free at each 429, are off by no more than is stated.
    assert found.wrong == []
    assert max(found.lags) <= world.settings.max_lag
    assert with_room < 0.15 * found.refused
    assert max(found.overshoot) <= world.settings.batch
    # Later turns of sessions, and people who are served whatever waits, are more than was let in.
    assert found.dropped < 0.08 * sum(found.lags.values())
    assert found.longest_told <= 60
    assert max(median(first), median(every), median(places)) <= 0.2
    assert found.trainer_idle_s < 0.05 * found.ended_at
