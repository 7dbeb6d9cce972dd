"""What the `config.json` of a model directory says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of the text model: a model that takes more than text has that apart."""
    return {**config, **config.get("text_config", {})}
