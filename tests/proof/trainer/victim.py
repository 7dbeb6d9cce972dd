"""A trainer in a process of its own that SIGKILLs itself at a named point.

`python -m tests.proof.trainer.victim POINT SETTINGS`, the settings a JSON file of TrainerSettings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.proof.trainer.points import POINTS, Point
from tests.torch_engine import TorchEngine
from trainer.config import TrainerSettings
from trainer.service import run


def arm(point: Point) -> None:
    """Replace what the point names by something deadly."""
    setattr(point.owner, point.name, deadly(getattr(point.owner, point.name), point.when))


def deadly(original: Callable[..., Any], when: str) -> Callable[..., Any]:
    if asyncio.iscoroutinefunction(original):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "after":
                await original(*args, **kwargs)
            die()

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "after":
                original(*args, **kwargs)
            die()

    return wrapped


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def main() -> None:
    name, path = sys.argv[1:]
    settings = TrainerSettings.model_validate_json(Path(path).read_text())
    arm(POINTS[name])
    asyncio.run(run(settings, asyncio.Event(), (TorchEngine(settings.model_directory),)))


if __name__ == "__main__":
    main()
