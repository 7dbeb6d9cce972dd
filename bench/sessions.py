"""How many recorded requests are placed right: `make bench-sessions`.

Every case of `tests/transcripts` is what one real client sent, with the place of each request
written by hand: `A 3 main tool` is session A, continuing request 3, on the main line, whose
messages after that reply came from tools; `side/unknown` is a call that nothing marks, which may
be held; `B<A` is a session called or forked from A, or one that asks about A; `~4` at the end says
that the reply of request 4 was discarded; `!` is a request that failed. A request with
`left` had a client that did not wait for the end. Cases of version `by hand` were not recorded
but written after what their clients are known to send. `tests.transcripts.generate` adds every
client in every kind of conversation, and three sets of shapes that no rule was made with when they
were written, which are counted apart as held out.

Each is replayed through the gateway's own placing and storing on a real PostgreSQL: once with a
key for each case, which gives the accuracy, and once with all cases under one key, request by
request in turn, which counts users who were merged, and what is right even so.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from bench.replay import Case, Gateway, Replayed, cases, key, opened, replay, replay_in_turn
from gateway.config import LogSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.records import new_id
from gateway.store.database import migrate
from gateway.telemetry import configure_logging
from tests.transcripts.generate import generated, held_out, third, unseen

REPORT = Path("build/bench/sessions.json")

#: How often the generated conversations are made anew.
_ROUNDS = 2
_HELD_OUT_ROUNDS = 3

#: How many cases are replayed side by side.
_AT_ONCE = 16

_TURN = """
SELECT t.id, t.session_id, t.parent_id, t.chain_hash, t.kind, t.kind_rule, t.resolve_rule,
    t.branch_reason, s.parent_session_id, n.role AS next_role, d.turn_id AS discarded
FROM turns t JOIN sessions s ON s.id = t.session_id
LEFT JOIN next_states n ON n.turn_id = t.parent_id AND n.following_id = t.id
    AND n.how = 'continued'
LEFT JOIN next_states d ON d.following_id = t.id AND d.how = 'rolled_back'
WHERE t.id = ANY($1::uuid[])
"""


@dataclass(slots=True)
class Outcome:
    """Where requests of one client were placed; `wrong` says what was found instead."""

    turns: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)


async def judged(gateway: Gateway, replayed: Replayed) -> Outcome:
    """Compare what was stored with what is expected of each request."""
    rows = await _rows(gateway, [replayed])
    outcome = Outcome()
    sessions: dict[UUID, str] = {}
    for number, (turn_id, expected) in enumerate(
        zip(replayed.turns, replayed.case.expect, strict=True), 1
    ):
        if turn_id is None:
            continue
        row = rows[turn_id]
        where, parent, kinds, role, *back = expected.split()
        name, _, origin = where.partition("<")
        if name not in sessions.values():
            # What the label calls a new session must be one.
            sessions.setdefault(row["session_id"], name)
        caller = sessions.get(row["parent_session_id"], "") if origin else ""
        parent_id = row["parent_id"]
        found = (
            sessions.get(row["session_id"], "new"),
            caller,
            _number(replayed, parent_id) if parent_id else "-",
            row["kind"],
            row["next_role"] or "-",
            *([f"~{_number(replayed, row['discarded'])}"] if row["discarded"] else []),
        )
        outcome.turns += 1
        kind = row["kind"] if row["kind"] in kinds.split("/") else kinds
        if found == (name, origin, parent, kind, role, *back):
            outcome.right += 1
        else:
            outcome.wrong.append(
                f"{replayed.case.name} {number}: expected {expected!r}, found {' '.join(found)!r} "
                f"({row['resolve_rule']}, {row['kind_rule']}, {row['branch_reason']})"
            )
    return outcome


def _number(replayed: Replayed, turn_id: UUID) -> str:
    """Which request of the case a turn answered; the turn of another case has no number."""
    return str(replayed.turns.index(turn_id) + 1) if turn_id in replayed.turns else "other"


async def merges(gateway: Gateway, among: Sequence[Replayed]) -> int:
    """Turns that continue, or share a named session with, a turn of another case.

    While nothing at all tells two conversations apart, one of them may continue the other's twin,
    a turn with the same history and reply: as soon as their histories differ they are.
    """
    rows = await _rows(gateway, among)
    owner = {turn: each.case.name for each in among for turn in each.turns if turn is not None}
    opened = {row["session_id"]: owner[row["id"]] for row in rows.values() if not row["parent_id"]}
    merged = 0
    for each in among:
        for turn_id in each.turns:
            if turn_id is None:
                continue
            row = rows[turn_id]
            parent = row["parent_id"]
            before = owner.get(parent) if parent else opened[row["session_id"]]
            own = {rows[turn]["chain_hash"] for turn in each.turns if turn is not None}
            twin = parent is not None and rows[parent]["chain_hash"] in own
            merged += before != each.case.name and not twin
    return merged


async def _rows(gateway: Gateway, among: Sequence[Replayed]) -> dict[UUID, Mapping[str, Any]]:
    ids = [turn for each in among for turn in each.turns if turn is not None]
    return {row["id"]: dict(row) for row in await gateway.database.fetch(_TURN, ids)}


async def apart(
    gateway: Gateway, among: Sequence[Case], tenants: Sequence[UUID] = ()
) -> list[tuple[Case, Outcome]]:
    """Each case with a key of its own, in each of the tenants (one of its own where none is given).

    A few are replayed side by side, so that commits are shared.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(case: Case, tenant: UUID) -> tuple[Case, Outcome]:
        async with limit:
            return case, await judged(gateway, await replay(gateway, case, key(tenant)))

    wanted = [(case, tenant) for case in among for tenant in (tenants or (new_id(),))]
    return await asyncio.gather(*(one(case, tenant) for case, tenant in wanted))


async def measured(gateway: Gateway, among: Sequence[Case]) -> dict[str, Any]:
    """The report: accuracy for each client, and merges."""
    by_client: defaultdict[str, Outcome] = defaultdict(Outcome)
    for case, outcome in await apart(gateway, among):
        total = by_client[case.client]
        total.turns += outcome.turns
        total.right += outcome.right
        total.wrong += outcome.wrong
    together = await replay_in_turn(gateway, among, key(new_id()))
    shared = [await judged(gateway, replayed) for replayed in together]
    return {
        "turns": sum(each.turns for each in by_client.values()),
        "right": sum(each.right for each in by_client.values()),
        "right_under_one_key": sum(each.right for each in shared),
        "cross_user_merges": await merges(gateway, together),
        "by_client": {
            client: {"turns": each.turns, "right": each.right, "wrong": each.wrong}
            for client, each in sorted(by_client.items())
        },
    }


def main() -> None:
    """Print the table and write the report."""
    configure_logging(LogSettings(level="error"), "bench")
    home = Path(tempfile.mkdtemp(prefix="nextstate-bench-"))
    server = EmbeddedPostgres(home, settings={"fsync": "off"})
    server.start()

    async def run() -> dict[str, Any]:
        await migrate(server.url)
        async with opened(server.url, home / "spool") as gateway:
            report = await measured(gateway, [*cases(), *generated(range(_ROUNDS))])
            held = await measured(gateway, list(held_out(range(_HELD_OUT_ROUNDS))))
            second = await measured(gateway, list(unseen(range(_HELD_OUT_ROUNDS))))
            last = await measured(gateway, list(third(range(_HELD_OUT_ROUNDS))))
            return {**report, "held_out": held, "unseen": second, "third": last}

    try:
        report = asyncio.run(run())
    finally:
        server.stop()
        shutil.rmtree(home)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    console = Console()
    for title, part in (
        ("recorded and generated", report),
        ("held out, first set", report["held_out"]),
        ("held out, second set", report["unseen"]),
        ("held out, third set", report["third"]),
    ):
        _print(console, title, part)
    console.print(REPORT)


def _print(console: Console, title: str, report: dict[str, Any]) -> None:
    table = Table("client", "turns", "right", title=f"sessions, {title}")
    for client, each in report["by_client"].items():
        table.add_row(client, str(each["turns"]), str(each["right"]))
    console.print(table)
    for each in report["by_client"].values():
        for line in each["wrong"]:
            console.print(line, highlight=False, markup=False)
    share = report["right"] / report["turns"]
    console.print(
        f"{title}: {report['right']} of {report['turns']} right ({share:.1%}), "
        f"{report['cross_user_merges']} users merged; under one key, in turn: "
        f"{report['right_under_one_key']}"
    )


if __name__ == "__main__":
    main()
