"""When a version may be unloaded, and that nothing else is."""

from uuid import UUID

import pytest

from trainer.drain import _versions, idle

LINEAGE = UUID(int=7)
OTHER = UUID(int=8)


def report(*, serving: int | None = None, running: dict[str, int] | None = None) -> dict:
    return {
        "serving": {} if serving is None else {LINEAGE.hex: serving},
        "in_flight": {LINEAGE.hex: running} if running else {},
    }


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], True),
        ([report(serving=3)], True),
        ([report(serving=4)], True),
        ([report(serving=2)], False),
        ([report(serving=3, running={"2": 1})], False),
        ([report(serving=3, running={"2": 0, "3": 9})], True),
        ([report()], True),
        ([report(running={"2": 1})], False),
        ([{}], True),
        ([report(serving=3), report(serving=2)], False),
        ([{"engines": [{"healthy": True, "serving": {LINEAGE.hex: 2}}]}], False),
        ([{"engines": [{"healthy": False, "serving": {LINEAGE.hex: 2}}]}], True),
        ([{"engines": [{"healthy": True, "serving": {LINEAGE.hex: 3}}]}], True),
        ([{"serving": {OTHER.hex: 1}, "in_flight": {OTHER.hex: {"2": 5}}}], True),
    ],
)
def test_idle(reports: list[dict], expected: bool) -> None:
    assert idle(reports, LINEAGE, version=2, live=3) is expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        # Moved back already, to 3.
        ({"serving": {LINEAGE.hex: 3}}, True),
        ({"serving": {LINEAGE.hex: 4}}, False),
        ({"serving": {LINEAGE.hex: 3}, "trying": {LINEAGE.hex: 4}}, False),
        ({"serving": {LINEAGE.hex: 3}, "trying": {LINEAGE.hex: 5}}, True),
        ({"healthy": False, "serving": {LINEAGE.hex: 4}}, True),
    ],
)
def test_a_later_version_that_was_undone_is_idle_once_everybody_is_off_it(
    place: dict, expected: bool
) -> None:
    assert idle([{"engines": [place]}], LINEAGE, version=4, live=3) is expected


def test_only_versions_of_the_lineage_count() -> None:
    names = [f"{LINEAGE.hex}-v12", f"{LINEAGE.hex}-v3", f"{OTHER.hex}-v1", f"{LINEAGE.hex}-vx", "a"]
    assert _versions(names, LINEAGE) == [3, 12]
