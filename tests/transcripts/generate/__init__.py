"""Conversations of simulated clients, with the place of every request; the same for a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.replay import Case
from tests.transcripts.generate.families import FAMILIES, Family
from tests.transcripts.generate.held_out import HELD_OUT
from tests.transcripts.generate.scenes import SCENES, Scene
from tests.transcripts.generate.stage import Stage
from tests.transcripts.generate.third import THIRD
from tests.transcripts.generate.unseen import UNSEEN

__all__ = [
    "FAMILIES",
    "HELD_OUT",
    "SCENES",
    "THIRD",
    "UNSEEN",
    "generated",
    "held_out",
    "third",
    "unseen",
]


def generated(seeds: range) -> Iterator[Case]:
    """Every client in every scene, once a seed."""
    for seed in seeds:
        for family in FAMILIES:
            for name, scene in SCENES.items():
                yield _case(family, name, scene, seed)


def _case(family: Family, name: str, scene: Scene, seed: int) -> Case:
    stage = Stage(f"{family.name} {name} {seed}")
    scene(family, stage)
    return Case(
        name=f"{family.name} {name} {seed}",
        client=f"{family.name} (generated)",
        expect=tuple(stage.expect),
        requests=tuple(stage.requests),
    )


def held_out(seeds: range) -> Iterator[Case]:
    """Shapes that no rule was made with at first, once a seed."""
    return _of_shapes("held out", HELD_OUT, seeds)


def unseen(seeds: range) -> Iterator[Case]:
    """The second such set, written after the rules that the first one asked for."""
    return _of_shapes("unseen", UNSEEN, seeds)


def third(seeds: range) -> Iterator[Case]:
    """The third set, written after the rules that the second one asked for."""
    return _of_shapes("third", THIRD, seeds)


def _of_shapes(
    name_of_set: str, shapes: Mapping[str, Callable[[Stage], None]], seeds: range
) -> Iterator[Case]:
    for seed in seeds:
        for name, scene in shapes.items():
            stage = Stage(f"{name_of_set} {name} {seed}")
            scene(stage)
            yield Case(
                name=f"{name_of_set} {name} {seed}",
                client=name,
                expect=tuple(stage.expect),
                requests=tuple(stage.requests),
            )
