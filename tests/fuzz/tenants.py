"""Two tenants at one gateway, doing whatever comes to them: neither sees or moves the other's.

What a tenant must never be told are the other's ids and words. Whatever names something of the
other's is refused as if there were none, or finds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import requests
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

READS = (
    "status", "sessions", "turns", "policies", "train-steps", "swaps", "events", "audit", "scores",
    "scores?by=client", "scores?by=tenant", "scores?by=tool", "traffic", "staleness", "workers",
    "keys", "tenants", "rules", "pauses", "engines", "export", "export?ids=true",
)  # fmt: skip
#: What takes an id: the method, the path, and what of a tenant's it is the id of.
NAMING = (
    ("GET", "sessions/{}", "session"),
    ("GET", "turns/{}", "turn"),
    ("GET", "turns/{}?ids=true", "turn"),
    ("GET", "turns/{}/explain", "turn"),
    ("GET", "keys/{}", "key"),
    ("GET", "tenants/{}", "tenant"),
    ("PATCH", "keys/{}", "key"),
    ("PATCH", "tenants/{}/settings", "tenant"),
    ("POST", "sessions/{}/close", "session"),
)
#: What finds nothing where it is of another.
FINDING = (
    ("POST", "sessions/{}/rejudge", "session"),
    ("POST", "turns/{}/rejudge", "turn"),
)
#: Filters by ids, and tenants that are named beside a request.
FILTERED = (
    ("GET", "turns?session_id={}", "session"),
    ("GET", "export?session_id={}", "session"),
)
OF_TENANT = (
    ("GET", "keys?tenant_id={}"),
    ("GET", "pauses?tenant_id={}"),
    ("POST", "capture/pause?tenant_id={}"),
    ("POST", "judging/pause?tenant_id={}"),
    ("POST", "judging/resume?tenant_id={}"),
)
#: Of the one lineage that both use.
MOVES = (
    "training/pause", "training/resume", "policies/1/promote", "policies/1/rollback",
    "policies/0/pin", "policies/1/unpin",
)  # fmt: skip


@dataclass(slots=True)
class Side:
    """One tenant: an admin key, the ids that are its own by kind, and words that are."""

    secret: str
    ids: dict[str, list[str]]
    words: Sequence[str]
    asked: int = 0
    http: requests.Session = field(default_factory=requests.Session)

    @property
    def marks(self) -> set[str]:
        return {*self.words, *(one for ids in self.ids.values() for one in ids)}


_WHO = st.sampled_from((0, 1))


class Tenants(RuleBasedStateMachine):
    """What either may do at any time; `url` is the gateway's, and the sides stand for all runs."""

    url: ClassVar[str]
    sides: ClassVar[Sequence[Side]]

    def _ask(self, side: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
        own, other = self.sides[side], self.sides[1 - side]
        own.asked += 1
        answer = own.http.request(
            method,
            f"{self.url}/admin/v1/{path}",
            json=body,
            headers={"authorization": f"Bearer {own.secret}"},
            timeout=60,
        )
        said = answer.text
        assert answer.status_code < 500, (method, path, said)
        # What it named itself it may be told again.
        named = {mark for mark in other.marks if mark in path or mark in str(body)}
        for mark in other.marks - named:
            at = said.find(mark)
            assert at < 0, (method, path, mark, said[max(0, at - 200) : at + 100])
        lines = answer.headers["content-type"].startswith("application/x-ndjson")
        return answer.status_code, None if lines else json.loads(said)

    @rule(side=_WHO, path=st.sampled_from(READS))
    def reads(self, side: int, path: str) -> None:
        assert self._ask(side, "GET", path)[0] == 200

    @rule(side=_WHO, asked=st.sampled_from(NAMING), whose=_WHO, place=st.integers(0, 99))
    def names(self, side: int, asked: tuple[str, str, str], whose: int, place: int) -> None:
        method, path, kind = asked
        ids = self.sides[whose].ids[kind]
        body = {} if method == "PATCH" else None
        status, said = self._ask(side, method, path.format(ids[place % len(ids)]), body)
        if side != whose:
            assert status == 404, (method, path, said)
        else:
            assert status in (200, 409), (method, path, said)

    @rule(side=_WHO, asked=st.sampled_from(FINDING), place=st.integers(0, 99))
    def finds_nothing(self, side: int, asked: tuple[str, str, str], place: int) -> None:
        method, path, kind = asked
        ids = self.sides[1 - side].ids[kind]
        status, said = self._ask(side, method, path.format(ids[place % len(ids)]))
        assert (status, said) == (200, {"found": 0, "queued": 0, "more": False})

    @rule(side=_WHO, asked=st.sampled_from(FILTERED), place=st.integers(0, 99))
    def filters(self, side: int, asked: tuple[str, str, str], place: int) -> None:
        method, path, kind = asked
        ids = self.sides[1 - side].ids[kind]
        status, said = self._ask(side, method, path.format(ids[place % len(ids)]))
        assert status == 200
        assert said in (None, {"items": [], "next": None})

    @rule(side=_WHO, asked=st.sampled_from(OF_TENANT))
    def acts_for_the_other(self, side: int, asked: tuple[str, str]) -> None:
        method, path = asked
        status, _ = self._ask(side, method, path.format(self.sides[1 - side].ids["tenant"][0]))
        assert status == 404

    @rule(
        side=_WHO,
        by=st.sampled_from(("path", "session", "session of tenant", "user of tenant")),
        place=st.integers(0, 99),
    )
    def erases_nothing_of_the_other(self, side: int, by: str, place: int) -> None:
        ids = self.sides[1 - side].ids
        session, tenant = ids["session"][place % len(ids["session"])], ids["tenant"][0]
        if by == "path":
            status, said = self._ask(side, "DELETE", f"sessions/{session}")
        else:
            body = {
                "session": {"session_id": session},
                "session of tenant": {"session_id": session, "tenant_id": tenant},
                "user of tenant": {"end_user": "ann", "tenant_id": tenant},
            }[by]
            status, said = self._ask(side, "POST", "erasures", body)
        assert status == 404, (by, said)

    @rule(side=_WHO, role=st.sampled_from(("agent", "rollout", "admin")))
    def makes_a_key(self, side: int, role: str) -> None:
        status, said = self._ask(side, "POST", "keys", {"name": "made", "role": role})
        assert status == 201
        self.sides[side].ids["key"].append(said["id"])
        # An id and a secret: neither is told to the other.
        self.sides[side].words = (*self.sides[side].words, said["secret"])

    @rule(
        side=_WHO, whose=_WHO, end=st.sampled_from(("rotate", "revoke")), place=st.integers(1, 99)
    )
    def ends_a_key(self, side: int, whose: int, end: str, place: int) -> None:
        ids = self.sides[whose].ids["key"][1:]
        if ids:
            id_ = ids[place % len(ids)]
            status, said = self._ask(side, "POST", f"keys/{id_}/{end}")
            assert status in ((404,) if side != whose else (200, 201, 409)), said
            if status == 201:
                self.sides[side].ids["key"].append(said["id"])

    @rule(
        side=_WHO,
        what=st.sampled_from(("capture", "judging")),
        verb=st.sampled_from(("pause", "resume")),
    )
    def pauses(self, side: int, what: str, verb: str) -> None:
        assert (
            self._ask(side, "POST", f"{what}/{verb}?reason={self.sides[side].words[0]}")[0] == 200
        )

    @rule(side=_WHO, path=st.sampled_from(MOVES))
    def moves_what_both_use(self, side: int, path: str) -> None:
        assert self._ask(side, "POST", path)[0] == 403

    @rule(side=_WHO, path=st.sampled_from(("tenants", "rules", "engines/engine/drain")))
    def is_no_operator(self, side: int, path: str) -> None:
        method, body = ("PUT", {}) if path == "rules" else ("POST", {"name": "third"})
        assert self._ask(side, method, path, body)[0] == 403


def wander(url: str, sides: Sequence[Side], examples: int, steps: int) -> None:
    """Let both do something `examples` times `steps` times, the same each time."""
    found: Any = type("Pair", (Tenants,), {"url": url, "sides": sides})
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        # What is wrong is told as it was found: the tenants are not what they were.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(found, settings=how)
    finally:
        for side in sides:
            side.http.close()
