"""One rank of a trainer, as torchrun starts it: `-m tests.trainer_rank SETTINGS [deadly]`.

SETTINGS is a JSON file of TrainerSettings. Rank 0 has an engine in its own process; the others get
no database that could answer. With `deadly`, rank 1 kills itself in the middle of its first step.
Megatron computes on the CPU by the shim of the tests.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from gateway.errors import NextstateError
from tests import megatron_shim
from tests.torch_engine import FullEngine, TorchEngine
from trainer import service
from trainer.backends.torch_backend import TorchBackend
from trainer.config import TrainerSettings
from trainer.distributed import place
from trainer.learner import Learner
from trainer.service import make_learner


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def shimmed(*arguments: Any) -> Learner:
    """In the thread that goes on to train: what answers for CUDA does so in one thread alone."""
    megatron_shim.install()
    return make_learner(*arguments)


def run() -> None:
    path, *deadly = sys.argv[1:]
    settings = TrainerSettings.model_validate_json(Path(path).read_text())
    rank = place().rank
    if rank:
        nowhere = settings.database.model_copy(update={"url": "postgresql://x@127.0.0.1:1/none"})
        settings = settings.model_copy(update={"database": nowhere})
        if deadly:
            TorchBackend._tokens = die  # type: ignore[assignment, method-assign]
    engine = TorchEngine
    if settings.trainer.backend == "megatron":
        engine = FullEngine
        megatron_shim.compile_nothing()
        service.make_learner = shimmed
    try:
        service.main(settings, [engine(settings.model_directory)] if rank == 0 else ())
    except NextstateError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
        sys.exit(1)


if __name__ == "__main__":
    run()
