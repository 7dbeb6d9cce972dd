"""Main line or side call, and what the next state of the parent turn is. Pure.

Only main-line turns are trained on. What cannot be known yet is `unknown`: served, held, and
promoted to main once a later request extends it.
"""

from gateway.classify.awareness import Awareness
from gateway.classify.classifier import Classifier, Kind, promoted_by
from gateway.classify.markers import COMPACTION, SUBAGENT, marker_of
from gateway.classify.next_state import next_state_of, told

__all__ = [
    "COMPACTION",
    "SUBAGENT",
    "Awareness",
    "Classifier",
    "Kind",
    "marker_of",
    "next_state_of",
    "promoted_by",
    "told",
]
