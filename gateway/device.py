"""The one place that decides whether work runs on a GPU, without loading torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from gateway.errors import ConfigError

Device = Literal["cpu", "cuda"]


def device() -> Device:
    """`NEXTSTATE_DEVICE` where set, else `cuda` where the kernel driver lists a GPU.

    Raises ConfigError for any other value.
    """
    named = os.environ.get("NEXTSTATE_DEVICE", "auto")
    if named == "cpu":
        return "cpu"
    if named == "cuda":
        return "cuda"
    if named != "auto":
        raise ConfigError(f"NEXTSTATE_DEVICE must be auto, cpu or cuda, not {named!r}")
    gpus = Path("/proc/driver/nvidia/gpus")
    return "cuda" if gpus.is_dir() and any(gpus.iterdir()) else "cpu"
