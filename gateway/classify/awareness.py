"""The rules in force, which change while requests are served."""

from __future__ import annotations

from gateway.classify.classifier import Classifier
from gateway.config import SessionSettings


class Awareness:
    """What `session_awareness` says now, and the classifier made of it.

    Raises ConfigError for a pattern that is no regular expression.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._classifier = Classifier(settings)
        self._settings = settings

    @property
    def settings(self) -> SessionSettings:
        return self._settings

    @property
    def classifier(self) -> Classifier:
        return self._classifier

    def adopt(self, settings: SessionSettings) -> bool:
        """Put other rules in force; whether they differ. Raises ConfigError and keeps the old."""
        if settings == self._settings:
            return False
        self._classifier = Classifier(settings)
        self._settings = settings
        return True
