"""Invariants of the tree of turns, over any tree: what is trained is what was sampled, once."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.records import FinishReason, TrainingSample, TurnRecord, VersionSpan
from gateway.store.trails import of_turn
from gateway.tokens.renderer import common_prefix
from tests.factories import session, turn
from trainer.chains import chains
from trainer.packing import pack

#: So few ids that turns begin alike by chance, too.
VOCAB = 3
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)
SESSION = UUID(int=7)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A turn as it was: all ids that the engine saw, and those that it sampled."""

    parent: int | None
    prompt: list[int]
    sampled: list[int]


@st.composite
def trees(draw: st.DrawFn) -> list[Seen]:
    """Turns that extend their parent, branch off it anywhere, or begin anew."""
    made: list[Seen] = []
    for _ in range(draw(st.integers(1, 7))):
        parent = draw(st.sampled_from([None, *range(len(made))]))
        whole = [] if parent is None else made[parent].prompt + made[parent].sampled
        kept = draw(st.integers(0, len(whole)))
        if draw(st.booleans()):
            kept = len(whole)
        made.append(Seen(parent=parent, prompt=whole[:kept] + draw(IDS), sampled=draw(IDS)))
    return made


def stored(tree: list[Seen]) -> list[TurnRecord]:
    """The rows: only what is new to the parent is kept of each prompt."""
    of, records = session(), []
    for seen in tree:
        parent = None if seen.parent is None else records[seen.parent]
        whole = [] if seen.parent is None else tree[seen.parent].prompt + tree[seen.parent].sampled
        shared = common_prefix(whole, seen.prompt)
        records.append(
            turn(
                of,
                parent_id=parent.id if parent else None,
                shared_len=shared,
                prompt_ids=seen.prompt[shared:],
                sampled_ids=seen.sampled,
                logprobs=[-0.5] * len(seen.sampled),
                spans=(VersionSpan(version=1, start=0, end=len(seen.sampled)),),
            )
        )
    return records


@given(trees())
def test_rows_hold_each_id_once_and_give_every_prompt_back(tree: list[Seen]) -> None:
    records = stored(tree)
    trails = []
    for seen, record in zip(tree, records, strict=True):
        parent = None if seen.parent is None else trails[seen.parent]
        trail = of_turn(record, parent)
        assert trail is not None
        trails.append(trail)
        assert list(trail.prompt_ids) == seen.prompt
        # Lengths: what is shared and what is new are the prompt, nothing more.
        assert record.shared_len + len(record.prompt_ids) == len(seen.prompt)
        assert len(record.logprobs) == len(record.sampled_ids) == record.spans[-1].end
        # What is shared begins both, and no longer prefix of the parent would.
        if seen.parent is not None:
            whole, at = tree[seen.parent].prompt + tree[seen.parent].sampled, record.shared_len
            assert seen.prompt[:at] == whole[:at]
            assert at in (len(whole), len(seen.prompt)) or seen.prompt[at] != whole[at]


@settings(max_examples=60, deadline=None)
@given(trees(), st.data())
def test_every_sampled_token_is_trained_once_after_exactly_what_came_before_it(
    tree: list[Seen], data: st.DataObject
) -> None:
    """Whatever turns make a batch, in any order: shared prefixes are context, never targets."""
    batch = data.draw(st.permutations(range(len(tree))))[: data.draw(st.integers(1, len(tree)))]
    samples = [
        TrainingSample(
            id=UUID(int=index), turn_id=UUID(int=index), session_id=SESSION, user="", score=1.0,
            weight=1.0, prompt_ids=tree[index].prompt, sampled_ids=tree[index].sampled,
            logprobs=[-0.01 * (index + 1)] * len(tree[index].sampled), spans=(), temperature=1.0,
            finish_reason=FinishReason.STOP, arrived_at=0.0,
        )
        for index in batch
    ]  # fmt: skip
    assert sorted(index for chain in chains(samples) for index in chain) == list(range(len(batch)))
    advantages = [tuple(float(at) for at in range(len(each.sampled_ids))) for each in samples]
    trained: list[list[int]] = [[] for _ in samples]
    for micro in pack(samples, advantages, vocab=VOCAB, budget=64).micro:
        rows, width = micro.ids.tolist(), micro.ids.shape[1]
        for place, target, owner, advantage, behaviour in zip(
            micro.places.tolist(),
            micro.targets.tolist(),
            micro.samples.tolist(),
            micro.advantages.tolist(),
            micro.behaviour.tolist(),
            strict=True,
        ):
            own = tree[batch[owner]]
            context = rows[place // width][: place % width + 1]
            assert context == own.prompt + own.sampled[: len(trained[owner])]
            assert advantage == len(trained[owner])
            assert behaviour == pytest.approx(-0.01 * (batch[owner] + 1))
            trained[owner].append(target)
    assert trained == [tree[index].sampled for index in batch]
