"""Where a trainer is killed, by name: what is replaced, and on which side of it the end comes."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from gateway.store import policies
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from tests.torch_engine import TorchEngine
from trainer import checkpoint, delivery
from trainer.backends.torch_backend import TorchBackend
from trainer.learner import Learner
from trainer.publish import Publisher
from trainer.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Point:
    """The first call of `owner.name` that the process comes to is its last."""

    owner: type | ModuleType
    name: str
    when: Literal["before", "after"]


#: In the order in which a trainer comes by them.
POINTS: dict[str, Point] = {
    "leads": Point(PolicyStore, "become_leader", "after"),
    "released what its predecessor leased": Point(SampleStore, "release", "after"),
    "cut the line": Point(Sampler, "cut", "after"),
    "about to lease": Point(SampleStore, "lease", "before"),
    "leased": Point(SampleStore, "lease", "after"),
    "loaded its samples": Point(SampleStore, "load", "after"),
    "about to train": Point(Learner, "train", "before"),
    "took the optimizer's step": Point(TorchBackend, "step", "after"),
    "trained": Point(Learner, "train", "after"),
    "about to number the version": Point(PolicyStore, "allocate_version", "before"),
    "numbered the version": Point(PolicyStore, "allocate_version", "after"),
    "wrote the weights without a manifest": Point(TorchBackend, "export", "after"),
    "wrote half of the version": Point(checkpoint, "_seal", "after"),
    "wrote the version": Point(Learner, "write", "after"),
    "about to advance": Point(PolicyStore, "advance", "before"),
    "consumed samples in an open transaction": Point(policies, "put_trained", "before"),
    "named the version in an open transaction": Point(policies, "put_trained", "after"),
    "advanced": Point(PolicyStore, "advance", "after"),
    "about to compute the proof": Point(Learner, "proof", "before"),
    "about to publish": Point(Publisher, "publish", "before"),
    "loaded an engine": Point(TorchEngine, "load", "after"),
    "probed an engine": Point(TorchEngine, "score", "after"),
    "recorded the swap": Point(PolicyStore, "record_swap", "after"),
    "about to promote": Point(PolicyStore, "promote", "before"),
    "promoted": Point(PolicyStore, "promote", "after"),
    "pruned": Point(delivery, "prune", "after"),
}
