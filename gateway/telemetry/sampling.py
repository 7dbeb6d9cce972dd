"""A share of the lines of noisy events, the same turns for each of them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping

from structlog import DropEvent
from structlog.typing import EventDict

#: Under any of these names a line says which turn it is of.
_TURNS = ("of_turn", "turn_id")
_GRAVE = frozenset({"warning", "error", "critical", "exception"})


class Sampling:
    """A processor that drops all but a share of an event's lines; kept ones say which share.

    Which turns are kept follows from their ids, so that a smaller share keeps some of those of a
    larger one, in every process. Lines of no turn are counted. Warnings and errors always stay.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._seen: Counter[str] = Counter()

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Raises DropEvent."""
        name = event["event"]
        share = self._shares.get(name)
        if share is None or method in _GRAVE:
            return event
        if not self._keeps(name, share, event):
            raise DropEvent
        event["sample"] = share
        return event

    def _keeps(self, name: str, share: float, event: EventDict) -> bool:
        turn = next((event[key] for key in _TURNS if event.get(key)), None)
        if turn is not None:
            return zlib.crc32(str(turn).encode()) < share * 2**32
        seen = self._seen[name] = self._seen[name] + 1
        return int(seen * share) > int((seen - 1) * share)
