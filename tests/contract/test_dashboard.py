"""The dashboard in a real browser, over a seeded database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.local.environments import checkout
from gateway.records import Role
from gateway.store.keys import KeyStore
from tests.clients import run_node
from tests.fixtures_dashboard import Stage, browser, grave, modules, stage
from tests.fixtures_gateway import Gateway
from tests.seeded import SECRET, THEIRS, Seeded, seeded

__all__ = ["browser", "modules", "stage"]


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, gateway.keys, tmp_path) as found:
        yield found


async def test_every_page_in_light_in_dark_and_on_a_phone(stage: Stage, world: Seeded) -> None:
    seen = await stage.play("pages", SESSION=str(world.long.id), TURN=str(world.turns[0].id))
    for how in ("light", "dark", "phone", "phone-dark"):
        found = seen[how]
        assert grave(found["form"]) == []
        assert (found["trouble"], found["elsewhere"], found["policy"]) == ([], [], [])
        # The key is in the tab's own storage and nowhere else.
        assert found["stored"] == [0, "", ["nextstate.admin-key"]]
        for name, view in found["views"].items():
            assert grave(view["violations"]) == [], (how, name)
            assert view["overflow"] <= 0, (how, name)
            assert THEIRS not in view["text"], (how, name)
    views = seen["light"]["views"]
    shows = {
        "overview": ["6 turns", "alarm: disagreement", "default v1", "score_zero: 1"],
        "sessions": ["chat-1", "agent/1", "agent/2", "+0.25"],
        "session": ["Session chat-1", SECRET, "trained toward version 1", "by header"],
        "judging": ["default v1", "+1.00", "alarm: disagreement", "look"],
        "learning": ["v0 to v1", "loaded", "at most 4 versions behind", "Samples that wait"],
        "workers": ["disagreement", "default: leads", "promoted", "engine"],
    }
    for name, words in shows.items():
        for word in words:
            assert word in views[name]["text"], (name, word)
    assert [name for name, view in views.items() if view["charts"]] == [
        "overview", "judging", "learning",
    ]  # fmt: skip
    assert any("Mean score by policy version" in one for one in views["judging"]["named"])
    assert views["session"]["title"] == "Session · Nextstate"
    decode = stage.gateway.services.tokenizer.decode
    root = [[decode([one]), "t-pos"] for one in (10, 11, 12, 13)]
    assert views["session"]["tokens"] == root


async def test_wrong_keys_an_absent_gateway_and_leaving(stage: Stage, world: Seeded) -> None:
    seen = await stage.play("states")
    assert seen["wrong"] == {"notice": "Incorrect API key provided.", "form": True, "kept": 0}
    assert seen["agent"] == {
        "notice": "This API key has no admin role.", "form": True, "kept": 0,
    }  # fmt: skip
    assert seen["away"]["notice"] == "The gateway does not answer. Trying again."
    # What was known stays in sight.
    assert "6 turns" in seen["away"]["main"]
    assert "6 turns" in seen["back"]
    assert seen["left"]["kept"] == 0
    assert "Admin key" in seen["left"]["main"]
    assert seen["errors"] == []


async def test_what_is_served_meanwhile_shows_by_itself(stage: Stage, world: Seeded) -> None:
    seen = await stage.play("live")
    assert seen["status"] == 200
    assert int(seen["after"].split()[0]) == int(seen["before"].split()[0]) + 1
    assert seen["focused"].startswith("s-")
    assert seen["still"] == seen["focused"]


async def test_the_keyboard_reaches_everything(stage: Stage, world: Seeded) -> None:
    seen = await stage.play("keyboard")
    assert seen["first"] == "key"
    assert seen["path"] == [
        "Skip to the content", "Nextstate", "Overview", "Sessions", "Judging",
    ]  # fmt: skip
    assert seen["outline"] == "solid"
    assert (seen["focus"], seen["current"]) == ("main", "Judging")


async def test_a_tenant_that_has_nothing_yet_is_told_so(stage: Stage, world: Seeded) -> None:
    keys = KeyStore(stage.gateway.services.database)
    tenant, lineage = await keys.ensure_tenant("third"), await keys.ensure_lineage("own", "tiny")
    _, admin = await keys.create(tenant, "admin", Role.ADMIN, lineage)
    found = await stage.play("empty", admin=admin)
    assert found["trouble"] == []
    said = {name: one["text"] for name, one in found["seen"].items()}
    assert "Nothing in this stretch of time yet." in said["overview"]
    assert "no session has been captured" in said["sessions"]
    assert "nothing has been scored in this stretch of time" in said["judging"]
    assert "no engine has been given a version yet" in said["learning"]
    assert "nothing has happened yet" in said["workers"]
    for name, one in found["seen"].items():
        assert grave(one["violations"]) == [], name
    assert SECRET not in str(found)


async def test_figures_are_worked_out_as_by_hand(modules: Path) -> None:
    funnel = {
        "turns": 20, "main": 15, "side": 4, "unknown": 1, "with_next_state": 12, "judging": 2,
        "scored": 8, "trained": 3, "samples": {"ready": 1, "leased": 1},
        "unscored": {"score_zero": 2, "no_next_state": 3, "no_rule_settled": 2},
        "untrainable": {"grammar": 1}, "dropped": {},
    }  # fmt: skip
    given = {
        "funnel": funnel,
        # A root with two children, of which one goes on; and one whose parent is elsewhere.
        "turns": [
            {"id": one, "parent_id": parent}
            for one, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "b"), ("e", "x"))
        ],
        # One place alone, of which the library makes three years; several; zoomed; and none.
        "extents": [
            [[1000], 1000, 86_401_000, None, True],
            [[1000], 1000, 86_401_000, [400, 1300], True],
            [[1000, 2000, 5000], 1000, 5000, None, True],
            [[1, 2], 1, 2, None, False],
            [[1000, 2000, 5000], 1500, 2000, None, True],
            [[], None, None, None, True],
        ],
        "rows": [{"at": 0, "n": 1}, {"at": 10, "n": 2}, {"at": 60, "n": 3}],
        "lines": [{"name": "c", "x": 75}, {"name": "a", "x": 10}, {"name": "b", "x": 39}],
        # Two engines move on one after the other; the last goes back, after a load that failed.
        "swaps": [
            {"to_version": to, "outcome": outcome, "ended_at": at}
            for to, outcome, at in (
                (1, "loaded", 40),
                (3, "rejected", 35),
                (2, "loaded", 30),
                (2, "loaded", 29),
                (1, "loaded", 20),
                (1, "loaded", 10),
            )
        ],
        "tokens": [
            {"score": 1, "version": 7, "logprob": -0.1, "teacher": -0.5},
            {"score": None, "version": None, "logprob": -3.0, "teacher": None},
        ],
    }
    found = await run_node(
        modules,
        "dashboard_model.mjs",
        json.dumps(given),
        STATIC=str(checkout() / "gateway" / "api" / "dashboard" / "static"),
    )
    assert [(one["turns"], one["lost"]) for one in found["stages"]] == [
        (20, {}),
        (15, {"side calls": 4, "not decided yet": 1}),
        (12, {"nothing followed": 3}),
        (8, {"being judged": 2, "no_rule_settled": 2}),
        (3, {"waiting for a step": 2, "score_zero": 2, "grammar": 1}),
    ]
    assert found["chains"] == [[["a", "b"], ["c", "d"]], [["e"], []]]
    # Where nothing was served the line goes down to nothing, and up again.
    assert found["columns"] == [[0, 10, 20, 50, 60], [1, 2, 0, 0, 3]]
    assert found["extents"] == [
        [940, 1060], [400, 1300], [880, 5120], [0.5, 2.5], [1440, 2060], [0, 1],
    ]  # fmt: skip
    assert found["buckets"] == [5, 600, 3600]
    assert found["classes"] == [
        ["t-pos", "t-v1", "t-p2", "t-neg"],
        ["t-none", "t-none", "t-p0", "t-none"],
    ]
    assert found["apart"] == ["a", "c"]
    assert found["moves"] == [
        {"at": 10, "name": "v1"}, {"at": 29, "name": "v2"}, {"at": 40, "name": "v1"},
    ]  # fmt: skip
    assert found["legends"] == [
        [["t-pos", "above 0"], ["t-none", "not scored"]],
        [["t-none", "unknown"], ["t-v1", "version 7"]],
        [["t-p0", "below 0.1"], ["t-p2", "above 0.5"]],
        [["t-neg", "less likely"], ["t-none", "unknown"]],
    ]
    assert found["clocks"] == [
        ["23:59:50\n1970-01-01", "23:59:55", "00:00:00\n1970-01-02"],
        ["23:00\n1970-01-01", "00:00\n1970-01-02", "01:00"],
        ["1970-01-01", "1970-01-02"],
    ]
    assert found["formats"] == [
        "\u22120.50", "0.00", "\u2013", "1.2e-4", "1000 ms", "1.50 s", "119 s", "2 min", "2 h",
        "never", "\u2013", "\u22120.25 to +1.00", "a\n[image_url]", "",
    ]  # fmt: skip
    url = "admin/v1/scores?by=time&client=a+b"
    assert [one[0] for one in found["asked"]] == [url, url, "admin/v1/scores"]
    assert found["asked"][1][1] == {"authorization": "Bearer k", "if-none-match": '"a"'}
    assert found["answers"] == [{"n": 1}, {"n": 1}, [400, "No."]]
