"""What is compared: the trainer as it is, by method, and a recipe without its precautions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gateway.records import TrainingSample
from trainer.backends.base import Backend
from trainer.config import TrainerConfig
from trainer.learner import Learner
from trainer.packing import minibatches
from trainer.sampling import refusal
from trainer.update import update

#: The same for every arm: at three times as much, arms that distil lose facts (what they gave is
#: kept in `bench/measured` too). `TUNE=1` compares it with larger ones, on a seed of its own.
RATE = 1e-4
RATES = (RATE, 3e-4, 1e-3)
ARMS = ("none", "binary", "opd", "combined", "openclaw")
#: Those that read what a teacher says.
TAUGHT = ("opd", "combined")

#: A published recipe, as read: scores as they are for advantages, no weight for old samples,
#: nothing masked or dropped, no baseline, no KL, means over tokens and then over samples.
_PLAIN: Mapping[str, Any] = {
    "importance": "none",
    "opsm_delta": None,
    "veto": None,
    "kl_coef": 0.0,
    "aggregate": "sequence_mean",
    "max_step_kl": None,
}


def config(arm: str, rate: float = RATE, **changes: Any) -> TrainerConfig:
    """The trainer's settings; what an arm does not change is the default."""
    method = arm if arm in TAUGHT else "binary"
    return TrainerConfig.model_validate(
        {
            "optimizer": {"lr": rate},
            "credit": {"method": method},
            "loss": _PLAIN if arm == "openclaw" else {},
            "truncated": "always" if arm == "openclaw" else "negative",
            **changes,
        }
    )


class Plain(Learner):
    """Trains on scores as they are, whatever was to be expected."""

    def __init__(self, backend: Backend, settings: TrainerConfig, root: Any) -> None:
        super().__init__(backend, settings, root)
        self._own, self._settings = backend, settings

    def train(
        self, samples: Sequence[TrainingSample], cancelled: Callable[[], bool]
    ) -> dict[str, float]:
        started = time.perf_counter()
        batches = minibatches(
            samples,
            [(sample.score,) * len(sample.sampled_ids) for sample in samples],
            1,
            vocab=self.vocab_size,
            budget=self._own.budget,
            version=self.version or 0,
            shared=self._own.shares_rows,
        )
        metrics = update(self._own, batches, self._settings.loss, cancelled)
        self.version = None
        return metrics | {
            "samples": float(len(samples)),
            "score_mean": fmean(sample.score for sample in samples),
            "train_s": time.perf_counter() - started,
        }


def learner(arm: str, backend: Backend, settings: TrainerConfig, root: Any) -> Learner:
    return (Plain if arm == "openclaw" else Learner)(backend, settings, root)


def trainable(
    arm: str, samples: Sequence[TrainingSample], settings: TrainerConfig, vocab: int
) -> list[TrainingSample]:
    """Those that the trainer would take; distillation alone takes only what was taught."""
    return [
        sample
        for sample in samples
        if refusal(sample, settings, vocab) is None
        and (arm != "opd" or sample.teaching is not None)
    ]
