"""One arm with one seed, version by version. Each version's file is all that the next one needs.

With a lag of L, the step into version n trains on what version n - 1 - L sampled: version 0
samples L + 1 batches, every other one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.learning_arms import RATE, TAUGHT, config, learner, trainable
from bench.learning_model import Policy
from bench.learning_quality import answer_logprob, facts_right
from bench.learning_turns import Turn, converse
from gateway.records import PolicyKind, PolicyRef, TrainingSample
from trainer.backends.torch_backend import TorchBackend
from trainer.checkpoint import Written, prune
from trainer.learner import Learner

_LINEAGE = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`versions` steps of `batch` conversations; `ends` first turns at least of both ends.

    Batches are multiples of the number of people, so that each asks as often as any other.
    """

    versions: int = 8
    batch: int = 27
    ends: int = 72
    lag: int = 1
    rate: float = RATE

    def count(self, version: int) -> int:
        """Conversations of a version."""
        if version == 0:
            return max(self.ends, (self.lag + 1) * self.batch)
        return self.batch if version < self.versions else max(self.ends, self.batch)

    def trains(self, version: int) -> bool:
        """Whether a step reads what a version sampled."""
        return version == 0 or version + 1 + self.lag <= self.versions

    def source(self, version: int) -> tuple[int, int]:
        """The version that sampled what the step into `version` trains on, and which batch."""
        number = version - 1
        return (0, number) if number <= self.lag else (number - self.lag, 0)


class Run:
    """One arm and seed below `home`, which holds runs of one plan."""

    def __init__(self, arm: str, seed: int, plan: Plan, home: Path) -> None:
        self._arm, self._seed, self._plan = arm, seed, plan
        self._home = home / arm / str(seed)
        self._base = home / "none" / str(seed) / "0.json"

    def record(self, version: int) -> dict[str, Any] | None:
        """What was found of a version; every arm has version 0 in common with the control."""
        path = self._base if version == 0 else self._path(version)
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def missing(self) -> list[int]:
        return [n for n in range(self._plan.versions + 1) if self.record(n) is None]

    def go(self, stage: Stage, late: Callable[[], bool]) -> bool:
        """Do what is missing; False where it is too late for all of it."""
        for version in self.missing:
            if late():
                return False
            started = time.perf_counter()
            found = self._version(version, stage)
            path = self._base if version == 0 else self._path(version)
            _write(path, {**found, "seconds": time.perf_counter() - started})
            if "written" in found:
                # A version that was written twice has a rest of the first time beside it.
                prune(self._home, named=[found["written"]["uri"]], keep=1)
        return True

    def _version(self, version: int, stage: Stage) -> dict[str, Any]:
        step: dict[str, Any] = {}
        if self._arm != "none" and version > 0:
            step = self._step(version, stage)
            quality = None
        else:
            stage.base()
            first = self.record(0)
            quality = first["quality"] if first else None  # the same weights
        name = f"{self._seed}/{version}"
        # Version 0 is every arm's. Later turns are only asked for, and taught, to be trained on.
        trained = version == 0 or (self._arm != "none" and self._plan.trains(version))
        teacher = stage.teacher if version == 0 or (trained and self._arm in TAUGHT) else None
        count = self._plan.count(version)
        turns = converse(stage.policy, teacher, version, count, name, follow=trained)
        return {
            "version": version,
            "turns": [turn.dump() for turn in turns],
            "quality": quality
            or {
                "facts_right": facts_right(stage.policy),
                "answer_logprob": answer_logprob(stage.policy),
            },
            **step,
        }

    def _step(self, version: int, stage: Stage) -> dict[str, Any]:
        trainer = stage.student(self._arm, self._plan.rate, self._home)
        before = self.record(version - 1)
        assert before is not None
        if trainer.version != version - 1 or stage.trained != (self._arm, self._seed):
            trainer.version = None
            written = Written(**before["written"]) if "written" in before else None
            trainer.restore(_ref(version - 1, written), written.state if written else None)
        stage.trained = (self._arm, self._seed)
        metrics = trainer.train(self._batch(version, stage), lambda: False)
        written = trainer.write(version)
        stage.policy.load(stage.backend.iter_hf_weights())
        stage.loaded = (self._arm, version)
        return {"metrics": metrics, "written": asdict(written)}

    def _batch(self, version: int, stage: Stage) -> Sequence[TrainingSample]:
        source, number = self._plan.source(version)
        found = self.record(source)
        assert found is not None
        turns = [Turn.read(turn) for turn in found["turns"]]
        size = self._plan.batch
        rows = range(number * size, (number + 1) * size)
        chosen = [turn for turn in turns if int(turn.session.rpartition("/")[2]) in rows]
        samples = [turn.sample() for turn in chosen]
        return trainable(self._arm, samples, stage.settings, stage.backend.vocab_size)

    def _path(self, version: int) -> Path:
        return self._home / f"{version}.json"


class Stage:
    """The models of this process: what samples, what teaches, and what is trained."""

    def __init__(self, model: Path, threads: int = 1) -> None:
        self._model, self._threads = model, threads
        self.loaded: tuple[str, int] | None = ("none", 0)
        self.trained: tuple[str, int] | None = None
        self._students: tuple[tuple[str, float, Path], Learner] | None = None

    @cached_property
    def policy(self) -> Policy:
        return Policy(self._model)

    @cached_property
    def teacher(self) -> Policy:
        return Policy(self._model)

    def base(self) -> None:
        """Sample from the base model."""
        if self.loaded != ("none", 0):
            self.policy.load(self.teacher.weights())
            self.loaded = ("none", 0)

    def student(self, arm: str, rate: float, root: Path) -> Learner:
        """The learner of an arm and place; one is kept."""
        key = (arm, rate, root)
        if self._students is None or self._students[0] != key:
            self.settings = config(arm, rate, threads=self._threads)
            self.backend = TorchBackend(self._model, self.settings, "cpu")
            self._students = (key, learner(arm, self.backend, self.settings, root))
        return self._students[1]


def _ref(version: int, written: Written | None) -> PolicyRef:
    return PolicyRef(
        lineage_id=_LINEAGE,
        version=version,
        kind=PolicyKind.LORA if written else PolicyKind.BASE,
        uri=written.uri if written else None,
        checksum=written.checksum if written else None,
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    """There whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content))
    aside.rename(path)
