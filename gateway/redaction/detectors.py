"""What other packages bring to find what no expression can: names, places, diagnoses.

A package names a factory under the entry point group `nextstate.detectors`; called with the
settings of `capture.redaction.settings`, it gives a detector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from gateway.errors import ConfigError

GROUP = "nextstate.detectors"


class Detector(Protocol):
    """Finds what is not to be stored. Called from several threads at once."""

    name: str

    def find(self, text: str) -> Iterable[tuple[int, int]]:
        """[start, end) of each place in the text. What it raises hides the whole text."""
        ...


Factory = Callable[[Mapping[str, Any]], Detector]


def plugged_in(name: str, settings: Mapping[str, Any]) -> Detector:
    """The detector of an entry point. Raises ConfigError where it is not there or does not load."""
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none"
        raise ConfigError(f"capture.redaction: no detector named {name}; there are: {known}")
    try:
        make: Factory = next(iter(found)).load()
        detector = make(settings)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"detector {name}: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(detector, "name", None), str) or not callable(
        getattr(detector, "find", None)
    ):
        raise ConfigError(f"detector {name} is no detector: it needs a name and find(text)")
    return detector
