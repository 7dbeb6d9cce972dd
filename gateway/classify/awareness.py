"""The rules in force, which change while requests are served."""

from __future__ import annotations

from gateway.classify.classifier import Classifier
from gateway.config import SessionSettings


class Awareness:
    """What `session_awareness` says now, and the `classifier` made of it; `adopt` changes both.

    Raises ConfigError for a pattern that is no regular expression.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.classifier = Classifier(settings)
        self.settings = settings

    def adopt(self, settings: SessionSettings) -> bool:
        """Put other rules in force; whether they differ. Raises ConfigError and keeps the old."""
        if settings == self.settings:
            return False
        self.classifier = Classifier(settings)
        self.settings = settings
        return True
