"""Samples that are to be trained on together: replies to the same task (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gateway.records import SampleHead


@dataclass(frozen=True, slots=True)
class Unit:
    """Samples that are taken together or not at all, oldest first; none while it is `open`."""

    heads: tuple[SampleHead, ...]
    open: bool = False


@dataclass(frozen=True, slots=True)
class Groups:
    """`units` may be taken or wait for a member; `flat` counts those whose scores are all equal.

    `members` are in a unit or flat. A sample without siblings is in neither.
    """

    units: tuple[Unit, ...]
    flat_members: tuple[SampleHead, ...]
    flat: int
    members: frozenset[SampleHead]

    @classmethod
    def of(cls, heads: Sequence[SampleHead], open_groups: Collection[str], before: float) -> Groups:
        """From samples, the oldest first, by their `group`.

        `open_groups` have a member without a verdict. What arrived `before` a time waits for none.
        """
        found: defaultdict[str, list[SampleHead]] = defaultdict(list)
        for head in heads:
            if head.group is not None:
                found[head.group].append(head)
        units, flat_members, flat = [], [], 0
        for name, members in found.items():
            if name in open_groups and members[0].arrived_at >= before:
                units.append(Unit(tuple(members), open=True))
            elif len(members) == 1:
                continue
            elif len({head.score for head in members}) == 1:
                flat_members += members
                flat += 1
            else:
                units.append(Unit(tuple(members)))
        inside = {head for unit in units for head in unit.heads}
        return cls(tuple(units), tuple(flat_members), flat, frozenset(inside | {*flat_members}))
