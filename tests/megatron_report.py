"""What the layouts of Megatron come to, each with its models, for the test that started it all."""

from __future__ import annotations

import copy
import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from gateway.errors import ConfigError
from gateway.records import PolicyKind, PolicyRef, new_id
from tests import megatron_shim
from tests.megatron_cases import (
    CHANGES,
    LAYOUTS,
    PROBES,
    RESUMED,
    SAVED,
    SERVED,
    STEPS,
    VOCAB,
    Layout,
    packed,
    plain,
    samples,
)
from trainer.config import TrainerConfig
from trainer.distributed import World, place
from trainer.learner import Learner
from trainer.losses import Size, policy_loss
from trainer.megatron_settings import MegatronSettings
from trainer.micro_batch import PackedBatch


def main(directory: Path) -> None:
    """Leave what came of the layouts of this many processes in `directory/LAYOUT-MODEL.pt`."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    megatron_shim.compile_nothing()
    world = World.open(place(), "cpu", 60)
    refused = {"cpu": refusal(directory / RESUMED)} if world.size == 1 else {}
    megatron_shim.install()
    for layout in LAYOUTS:
        if layout.world == world.size:
            for model in layout.models:
                found = report(layout, model, world, directory)
                if world.leads:
                    aside = directory / f"{layout.name}-{model}.part"
                    torch.save(found, aside)
                    aside.rename(aside.with_suffix(".pt"))
    if world.size == 1:
        torch.save(refused | refusals(directory), directory / "refusals.pt")
    if world.leads:
        torch.save(set(megatron_shim.SITES), directory / f"sites-{world.size}.pt")
    world.close()


def report(layout: Layout, model: str, world: World, directory: Path) -> dict[str, Any]:
    from megatron.core import parallel_state

    from trainer.backends.megatron.backend import MegatronBackend

    parallel_state.destroy_model_parallel()
    backend = MegatronBackend(directory / model, layout.config(), "cpu", world=world)
    batch, resumed = packed(samples()), model == RESUMED
    found: dict[str, Any] = {
        "weights": {name: one.clone() for name, one in backend.iter_hf_weights()},
        "logits": logits(backend, packed(plain())),
        "logprobs": torch.cat(backend.logprobs(packed(plain()))),
        "gradients": gradients(backend, packed(plain())),
        "scores": backend.score(PROBES),
    }
    if layout.resumes and resumed:
        while not (directory / f"{layout.resumes}-{model}.pt").exists():
            time.sleep(0.1)
        backend.load(directory / layout.resumes / "policy", directory / layout.resumes / "state")
        found["resumed"] = [step(backend, batch).loss for _ in range(STEPS - SAVED)]
        backend.reset()
        found["reset"] = backend.score(PROBES)
    outcomes = []
    for number in range(STEPS):
        if number == SAVED and layout.saves and model in (RESUMED, SERVED):
            save(backend, directory / layout.name)
            found["saved"] = backend.score(PROBES)
        outcomes.append(step(backend, batch))
    found["losses"] = [outcome.loss for outcome in outcomes]
    found["norms"] = [outcome.grad_norm for outcome in outcomes]
    found["tokens"] = outcomes[-1].tokens
    found["reference"] = torch.cat(backend.reference_logprobs(packed(plain())))
    found["trained"] = backend.score(PROBES)
    found |= way_back(backend, batch)
    if model == SERVED:
        found |= learnt(backend, layout, world, directory / "versions")
    return found


def logits(backend: Any, batch: PackedBatch) -> torch.Tensor:
    """Whole rows, in packing order."""
    everything = torch.arange(VOCAB)

    def reader(_: int, micro: Any, states: torch.Tensor) -> torch.Tensor:
        rows = backend._rows(backend._trunk.head)
        own: torch.Tensor = rows.at(rows.logits(states), everything.expand(len(states), -1))
        return own

    return torch.cat(backend._told(backend._passes.read(batch, reader), batch))


def gradients(backend: Any, batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Of the sum of all log-probabilities, by Hugging Face names.

    Nothing where processes share the sums of gradients out, and none has all of any.
    """
    backend._learn(batch, lambda tokens: tokens.current.sum(), lambda: False)
    weights = copy.copy(backend._weights)
    weights._named = {name: one.main_grad for name, one in backend._trunk.named_parameters()}
    found = {name: one.clone() for name, one in weights.iter_hf()}
    backend._optimizer.forget_gradients()
    return {} if backend._config.megatron.distributed_optimizer else found


def learnt(backend: Any, layout: Layout, world: World, root: Path) -> dict[str, Any]:
    """A version that is trained, written and read again as the trainer does it."""
    learner = Learner(backend, layout.config(), root, world)
    lineage = new_id()
    base = PolicyRef(lineage_id=lineage, version=0, kind=PolicyKind.BASE)
    learner.restore(base, None)
    metrics = learner.train(samples(), lambda: False)
    written = learner.write(1)
    proof = learner.proof()
    learner.restore(base, None)
    policy = PolicyRef(
        lineage_id=lineage,
        version=1,
        kind=PolicyKind.FULL,
        uri=written.uri,
        checksum=written.checksum,
    )
    learner.restore(policy, written.state)
    return {"metrics": metrics, "proofs": (proof.expected, learner.proof().expected)}


def way_back(backend: Any, batch: PackedBatch) -> dict[str, Any]:
    """A step that is taken back gives the same again; what shrinks to half lies in the middle."""
    name = "model.layers.1.mlp.down_proj.weight"

    def weight() -> torch.Tensor:
        return dict(backend.iter_hf_weights())[name].clone()

    before, start = backend.snapshot(), weight()
    first, moved = step(backend, batch).loss, weight()
    backend.shrink(before, 0.5)
    middle = weight()
    backend.rewind(before)
    again = step(backend, batch).loss
    return {"path": (start, middle, moved), "twice": (first, again)}


def save(backend: Any, directory: Path) -> None:
    for part, write in (("policy", backend.export), ("state", backend.save)):
        (directory / part).mkdir(parents=True, exist_ok=True)
        wait = write(directory / part)
        if wait is not None:
            wait()


def step(backend: Any, batch: PackedBatch) -> Any:
    loss = policy_loss(backend._config.loss, Size(batch.samples, batch.tokens))
    return backend.step(batch, loss, lambda: False)


def refusal(
    model: Path, kind: PolicyKind = PolicyKind.FULL, state: Path | None = None, **megatron: Any
) -> str:
    """What is said of a configuration that cannot be trained, or of a state that is none."""
    from trainer.backends.megatron.backend import MegatronBackend

    config = TrainerConfig(backend="megatron", megatron=MegatronSettings(**megatron))
    try:
        backend = MegatronBackend(model, config, "cpu", kind)
        if state is not None:
            backend.load(model, state)
    except ConfigError as error:
        return error.message
    return ""


def refusals(directory: Path) -> dict[str, str]:
    """Each once, of what the models of the directory are not."""
    from megatron.core import parallel_state

    model = directory / RESUMED
    changed = directory / "changed"
    found = {
        "lora": refusal(model, PolicyKind.LORA),
        "world": refusal(model, tensor_parallel=2),
        "heads": refusal(model, tensor_parallel=3),
        "layers": refusal(model, pipeline_parallel=3),
        "state": refusal(model, state=model),
        "engine": refusal(model, layers="transformer_engine"),
    }
    for name, values in CHANGES.items():
        parallel_state.destroy_model_parallel()
        shutil.copytree(model, changed, dirs_exist_ok=True)
        config = json.loads((model / "config.json").read_text())
        (changed / "config.json").write_text(json.dumps(config | values))
        found[name] = refusal(changed)
    return found
