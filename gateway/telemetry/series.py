"""Counters and histograms as plain numbers, which Prometheus is shown when it asks.

The client library's own take a lock and several calls for each step, of which a request makes ten.
These have no lock: one thread counts, and any may read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

#: The values of a series' labels, in the order of their names.
Key = tuple[str | int, ...]


class Counts(defaultdict[Key, float]):
    """A counter of several series: `counts["main", "yes"] += 1`, without labels `counts[()]`."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        super().__init__(float)
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        if not labels:
            self[()] = 0

    def family(self) -> CounterMetricFamily:
        """What Prometheus is shown."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for key, value in list(self.items()):
            family.add_metric([str(label) for label in key], value)
        return family


class Spread:
    """A histogram of several series; `bounds` are the upper ends of its buckets, rising."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._bounds = tuple(bounds)
        self._names = [*map(floatToGoString, bounds), "+Inf"]
        #: Of each series the sum, and how many values fell into each bucket alone.
        self._series: dict[Key, tuple[list[float], list[int]]] = {}

    def observe(self, key: Key, value: float) -> None:
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = ([0.0], [0] * len(self._names))
        found[0][0] += value
        found[1][bisect_left(self._bounds, value)] += 1

    def family(self) -> HistogramMetricFamily:
        """What Prometheus is shown: each bucket with all that is below it."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for key, ((total,), counts) in list(self._series.items()):
            below, buckets = 0, []
            for name, count in zip(self._names, counts, strict=True):
                below += count
                buckets.append((name, float(below)))
            family.add_metric([str(label) for label in key], buckets, total)
        return family
