"""Is correcting for old samples worth it? A tiny model that trains on what is four steps old.

Replies of four tokens are liked when the last is below 32. Each seed trains twice from the same
draws: with the trainer's weights and masks, and without. A sign test over seeds asks whether one
of them is better more often than chance would have it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import UUID

import torch
from transformers import AutoModelForCausalLM

from gateway.records import TrainingSample, VersionSpan
from tests.tiny_llama import VOCAB, make_llama, sample
from trainer.backends.torch_backend import TorchBackend
from trainer.config import LossSettings, TrainerConfig
from trainer.learner import Learner

LAG, SEEDS, STEPS, BATCH, REPLY = 4, 20, 40, 32, 4
_NO_BOUND = {"max_step_kl": None, "kl_coef": 0.01, "reference_length": REPLY}
OURS = LossSettings(**_NO_BOUND)
UNCORRECTED = LossSettings(**_NO_BOUND, importance="none", opsm_delta=None, veto=None)


class Bench:
    """A policy, and replies of the versions before it that wait to be trained on."""

    def __init__(self, directory: Path, loss: LossSettings, seed: int, lag: int = LAG) -> None:
        settings = TrainerConfig.model_validate(
            {
                "lora": {"rank": 4, "alpha": 8},
                "optimizer": {"lr": 1e-2},
                "micro_batch_tokens": 4096,
                "loss": loss.model_dump(),
                "seed": seed,
            }
        )
        self._backend = TorchBackend(directory, settings, "cpu")
        self._learner = Learner(self._backend, settings, directory)
        self._plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._draws = torch.Generator().manual_seed(seed)
        self._line: deque[list[TrainingSample]] = deque()
        self._lag, self.version = lag, 0

    @torch.no_grad()
    def rollout(self) -> list[TrainingSample]:
        own = self._plain.state_dict()
        for name, weight in self._backend.iter_hf_weights():
            own[name].copy_(weight)
        ids = torch.randint(0, VOCAB, (BATCH, 3), generator=self._draws)
        logs = []
        for _ in range(REPLY):
            log = self._plain(ids).logits[:, -1].log_softmax(-1)
            token = torch.multinomial(log.exp(), 1, generator=self._draws)
            logs.append(log.gather(-1, token))
            ids = torch.cat([ids, token], 1)
        values = torch.cat(logs, 1)
        span = (VersionSpan(self.version, 0, REPLY),)
        return [
            replace(
                sample(ids[row, :3].tolist(), ids[row, 3:].tolist()),
                session_id=UUID(int=row), temperature=1.0, logprobs=values[row].tolist(),
                spans=span, score=1.0 if ids[row, -1] < VOCAB // 2 else -1.0,
            )
            for row in range(BATCH)
        ]  # fmt: skip

    def step(self) -> tuple[float, dict[str, float]]:
        """Sample, and train on the oldest that waits; the score of what was sampled, metrics."""
        self._line.append(self.rollout())
        score = fmean(one.score for one in self._line[-1])
        if len(self._line) <= self._lag:
            return score, {}
        self._learner.version = self.version
        metrics = self._learner.train(self._line.popleft(), lambda: False)
        self.version += 1
        return score, metrics


def climb(directory: Path, loss: LossSettings, seed: int, steps: int = STEPS) -> list[float]:
    """The mean score of each round."""
    bench = Bench(directory, loss, seed)
    return [bench.step()[0] for _ in range(steps)]


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided p of as uneven a split of signs by chance; ties count for neither."""
    ups, downs = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, less = ups + downs, min(ups, downs)
    return min(1.0, 2 * sum(comb(n, k) for k in range(less + 1)) / 2**n)


def compared(
    home: Path, seeds: int = SEEDS, late: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Mean scores over all rounds by seed, kept below `home` seed by seed, and the sign test.

    Nothing where it is too late for all of them.
    """
    directory = make_llama(home / "model")
    pairs = []
    for seed in range(seeds):
        kept = home / f"{seed}.json"
        if not kept.is_file():
            if late():
                return {}
            pair = [fmean(climb(directory, loss, seed)) for loss in (OURS, UNCORRECTED)]
            aside = kept.with_suffix(".part")
            aside.write_text(json.dumps(pair))
            aside.rename(kept)
        pairs.append(json.loads(kept.read_text()))
    differences = [ours - bare for ours, bare in pairs]
    return {
        "lag": LAG,
        "seeds": seeds,
        "ours": [ours for ours, _ in pairs],
        "uncorrected": [bare for _, bare in pairs],
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
        "mean_difference": fmean(differences),
        "sign_test_p": sign_test(differences),
    }
