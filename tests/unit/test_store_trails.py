"""Ids put together from any tree of turns equal those that each turn saw."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.records import TurnRecord
from gateway.store.packing import pack_ids
from gateway.store.trails import TrailCache, assemble, of_turn
from tests.factories import session, turn

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[TurnRecord, list[int], list[int]]]:
    """Turns with the prompt that each saw and what it sampled, worked out on plain lists."""
    one = session()
    made: list[tuple[TurnRecord, list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([None, *made]))
        whole = parent[1] + parent[2] if parent else []
        shared = draw(st.integers(0, len(whole)))
        new, sampled = draw(IDS), draw(IDS)
        record = turn(
            one,
            parent_id=parent[0].id if parent else None,
            shared_len=shared,
            prompt_ids=new,
            sampled_ids=sampled,
        )
        made.append((record, whole[:shared] + new, sampled))
    return made


def row(record: TurnRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "shared_len": record.shared_len,
        "prompt_ids": pack_ids(record.prompt_ids),
        "sampled_ids": pack_ids(record.sampled_ids),
        "finish_reason": record.finish_reason.value,
    }


@given(trees())
def test_any_tree_gives_what_each_turn_saw(tree: list[tuple[TurnRecord, list[int], list[int]]]):
    by_id: dict[UUID, TurnRecord] = {record.id: record for record, _, _ in tree}
    cache = TrailCache(100, 1 << 20)
    for record, prompt, sampled in tree:
        chain = [record]
        while chain[-1].shared_len > 0:
            chain.append(by_id[chain[-1].parent_id])
        read = assemble([row(each) for each in reversed(chain)])
        parent = record.parent_id and cache.get(record.tenant_id, record.parent_id)
        remembered = of_turn(record, parent or None)
        for trail in (read, remembered):
            assert trail is not None
            assert (list(trail.prompt_ids), list(trail.sampled_ids)) == (prompt, sampled)
        cache.put(record.tenant_id, remembered)


@given(trees())
def test_a_chain_whose_start_is_missing_gives_nothing(
    tree: list[tuple[TurnRecord, list[int], list[int]]],
):
    record = tree[-1][0]
    if record.shared_len > 0:
        assert assemble([row(record)]) is None
        assert of_turn(record, None) is None
    else:
        assert assemble([row(record)]) is not None


def test_the_cache_counts_a_trail_that_is_replaced_once():
    one = session()
    first, second = turn(one), turn(one)
    cache = TrailCache(10, 60)
    for record in (first, second, first, second, first):
        trail = of_turn(record, None)
        assert trail is not None
        cache.put(one.tenant_id, trail)
    # Two trails of 28 bytes fit into 60.
    assert cache.get(one.tenant_id, first.id) is not None
    assert cache.get(one.tenant_id, second.id) is not None
