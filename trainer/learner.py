"""The policy that is being trained, with all that a checkpoint of it holds. Blocking."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from gateway.errors import NonFinite
from gateway.records import FinishReason, PolicyKind, PolicyRef, TrainingSample
from trainer.backends.base import Backend, Probe, Proof
from trainer.behaviour import Watch, behaviour
from trainer.checkpoint import Written, verify, verify_state, write_version
from trainer.config import TrainerConfig
from trainer.credit import Baseline, assign
from trainer.distributed import World
from trainer.packing import minibatches
from trainer.update import update

_STATE = "learner.json"

#: What the metrics of alarms begin with: 1 where the behaviour named after it is unusual.
ALARM = "alarm_"


class Learner:
    """One back end, its baseline and its probe sequences.

    In a world of several ranks each has one, and what is called on one is called on all.

    `version` is the one that is in memory, None while it is none that was ever written.
    """

    def __init__(
        self, backend: Backend, config: TrainerConfig, root: Path, world: World | None = None
    ) -> None:
        self._backend, self._config, self._root = backend, config, root
        self._world = world or World.alone()
        self._baseline, self._watch = Baseline(), Watch()
        self._probes = _random_probes(backend.vocab_size)
        self.version: int | None = None

    @property
    def vocab_size(self) -> int:
        return self._backend.vocab_size

    @property
    def kind(self) -> PolicyKind:
        return self._backend.kind

    def restore(self, policy: PolicyRef, checkpoint: str | None) -> None:
        """Continue from a version that Postgres names; version 0 is the base model.

        Raises CheckpointCorrupt, and ConfigError where these settings cannot train it.
        """
        if self.version == policy.version:
            return
        self.version = None
        if policy.uri is None or checkpoint is None:
            self._backend.reset()
            self._baseline, self._watch = Baseline(), Watch()
            self._probes = _random_probes(self.vocab_size)
        else:
            with self._world.together():
                if self._world.leads:  # The others see the same files.
                    verify(policy.uri, policy.checksum or "")
                    verify_state(checkpoint)
            weights, state = Path(policy.uri), Path(checkpoint.rpartition("#")[0])
            self._backend.load(weights, state)
            saved: dict[str, Any] = json.loads((state / _STATE).read_text())
            self._baseline = Baseline.restore(saved["baseline"])
            self._watch = Watch.restore(saved.get("watch", {}))
            self._probes = tuple(Probe(tuple(ids), start) for ids, start in saved["probes"])
        self.version = policy.version

    def train(
        self, samples: Sequence[TrainingSample], cancelled: Callable[[], bool]
    ) -> dict[str, float]:
        """One step; its metrics. Raises NonFinite or StepAbandoned, then nothing has changed."""
        config, started = self._config, time.perf_counter()
        credit = assign(samples, self._baseline, config.credit)
        batches = minibatches(
            samples,
            [
                (advantage,) * len(sample.sampled_ids)
                for sample, advantage in zip(samples, credit.advantages, strict=True)
            ],
            config.minibatches,
            vocab=self.vocab_size,
            budget=self._budget(samples),
            version=self.version or 0,
            taught=credit.taught,
            top_k=config.credit.distil == "top_k",
            shared=self._backend.shares_rows,
        )
        metrics = update(self._backend, batches, config.loss, cancelled)
        self.version = None
        before, self._baseline = self._baseline.overall.mean, credit.baseline
        found = behaviour(samples, config.alarms)
        raised = self._watch.alarms(found, config.alarms)
        self._watch = self._watch.after(found, config.alarms)
        settings = config.publish
        self._probes = tuple(
            _probe(sample, settings.probe_tokens) for sample in samples[: settings.probe_sequences]
        )
        scores = [sample.score for sample in samples]
        alarms = {f"{ALARM}{name}": float(name in raised) for name in found}
        return (
            metrics
            | found
            | alarms
            | {
                "samples": float(len(samples)),
                "score_mean": fmean(scores),
                "score_before": before,
                "score_after": self._baseline.overall.mean,
                "positive": sum(score > 0 for score in scores) / len(scores),
                "truncated": _share(samples, FinishReason.LENGTH),
                "advantage_mean": fmean(credit.advantages),
                "groups_flat": float(credit.flat_groups),
                "rule_held": credit.held,
                "forward_tokens": float(sum(batch.forward_tokens for batch in batches)),
                "train_s": time.perf_counter() - started,
            }
        )

    def proof(self) -> Proof:
        """What an engine that serves this policy must compute. Raises NonFinite."""
        scores = self._backend.score(self._probes)
        if not all(math.isfinite(value) for score in scores for value in score):
            raise NonFinite("the new policy gives log-probabilities that are not finite")
        return Proof(
            probes=self._probes,
            expected=tuple(tuple(score) for score in scores),
            tolerance=self._config.publish.probe_tolerance or self._backend.tolerance,
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What is in memory, by Hugging Face names; see `Backend.iter_hf_weights`."""
        return self._backend.iter_hf_weights()

    def write(self, version: int) -> Written:
        """Write what is in memory as `version`. Raises OSError."""
        written = write_version(self._root, version, self._backend.export, self._save, self._world)
        self.version = version
        return written

    def _budget(self, samples: Sequence[TrainingSample]) -> int:
        """Padded tokens of a micro-batch: as many as fit, but some for every rank."""
        budget, ranks = self._backend.budget, self._backend.ranks
        if ranks == 1:
            return budget
        tokens = sum(len(sample.prompt_ids) + len(sample.sampled_ids) for sample in samples)
        return max(1, min(budget, tokens // (ranks * self._config.minibatches)))

    def _save(self, directory: Path) -> Callable[[], None]:
        wait = self._backend.save(directory)
        saved = {
            "baseline": self._baseline.dump(),
            "watch": self._watch.dump(),
            "probes": [[list(probe.ids), probe.start] for probe in self._probes],
        }
        with self._world.together():
            if self._world.leads:
                (directory / _STATE).write_text(json.dumps(saved))
        return wait


def _share(samples: Sequence[TrainingSample], reason: FinishReason) -> float:
    return sum(sample.finish_reason is reason for sample in samples) / len(samples)


def _probe(sample: TrainingSample, limit: int) -> Probe:
    """The start of a sample that was just trained on: where the new policy differs most."""
    ids = (*sample.prompt_ids, *sample.sampled_ids)[:limit]
    return Probe(tuple(ids), max(1, min(len(sample.prompt_ids), len(ids) // 2)))


def _random_probes(vocab: int) -> tuple[Probe, ...]:
    """Ids spread over the vocabulary, for a policy that was trained on nothing yet."""
    return (Probe(tuple(7919 * place % vocab for place in range(1, 17)), 1),)
