"""The look-ups of branches read the few turns that they are about, by index."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.records import TurnKind, new_id
from gateway.store.beside import BRANCHES, find_branches
from gateway.store.database import Database
from gateway.store.leaves import LEAF, find_leaf
from gateway.store.lookups import PLANNER
from gateway.store.writer import TurnWriter
from tests.factories import session, turn

Parts = tuple[Database, TurnWriter]

DEEP = 60
OTHERS = 1500


@pytest.fixture
async def parts(database: Database) -> AsyncIterator[Parts]:
    writer = await TurnWriter.open(database)
    yield database, writer
    await writer.close()


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.parametrize("tables", ["new", "emptied", "filled"])
async def test_branches_and_leaves_are_found_by_their_keys(parts: Parts, tables: str) -> None:
    """Also with a plan that was made while the tables were empty, and known to be."""
    database, writer = parts
    one = session()
    line = [turn(one)]
    for _ in range(DEEP):
        line.append(turn(one, line[-1]))
    connection = await database.connect(**PLANNER)
    if tables == "emptied":
        await database.execute("VACUUM ANALYZE turns, next_states")
    if tables == "filled":
        await writer.commit(one, *line)
        await writer.commit(*(turn(session()) for _ in range(OTHERS)))
        await database.execute("ANALYZE turns")
    for sql, values, indexes in (
        (LEAF, (one.tenant_id, one.id, line[-2].id), {"turns_session", "turns_pkey"}),
        (BRANCHES, (one.tenant_id, line[0].id), {"turns_parent"}),
    ):
        plan = await connection.fetchval(f"EXPLAIN (FORMAT json) {sql}", *values)
        found = list(nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
        scans = [each for each in found if each.get("Relation Name") == "turns"]
        assert scans
        assert "Seq Scan" not in {each["Node Type"] for each in scans}
        conditions = {
            each["Index Name"]: each["Index Cond"] for each in found if "Index Cond" in each
        }
        assert indexes <= set(conditions)
        # A tenant has any number of turns: no index is gone through by it alone.
        assert not {"turns_chain", "turns_request"} & set(conditions)
    await connection.close()


async def test_branches_say_what_came_of_them(parts: Parts) -> None:
    database, writer = parts
    one = session()
    ids = sorted(new_id() for _ in range(5))
    root = turn(one, id=ids[0])
    children = [
        turn(one, root, id=ids[1]),
        turn(one, root, id=ids[2], kind=TurnKind.SIDE),
    ]
    again = turn(one, root, id=ids[3], retry_of=children[0].id)
    below = turn(one, children[0], id=ids[4])
    await writer.commit(one, root, *children, again, below)
    branches = await find_branches(database, one.tenant_id, root.id, 10)
    assert {each.turn_id: (each.kind, each.followed) for each in branches} == {
        children[0].id: (TurnKind.MAIN, True),
        children[1].id: (TurnKind.SIDE, False),
    }
    leaf = await find_leaf(database, one.tenant_id, one.id, root.id, 10)
    assert leaf is not None
    assert (leaf.turn_id, leaf.followed) == (below.id, False)
    assert await find_leaf(database, one.tenant_id, one.id, children[1].id, 10) is None
