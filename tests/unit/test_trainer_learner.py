"""What goes into a checkpoint comes back out of it."""

from array import array
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.errors import CheckpointCorrupt
from gateway.records import FinishReason, PolicyKind, PolicyRef, TrainingSample
from tests.tiny_model import make_model
from trainer.backends.torch_backend import TorchBackend
from trainer.checkpoint import Written
from trainer.config import LoraSettings, LossSettings, PublishSettings, TrainerConfig
from trainer.learner import Learner

CONFIG = TrainerConfig(
    lora=LoraSettings(rank=4), publish=PublishSettings(probe_sequences=2, probe_tokens=8)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def learner(model: Path, root: Path, seed: int = 0) -> Learner:
    config = CONFIG.model_copy(update={"seed": seed})
    return Learner(TorchBackend(model, config, "cpu"), config, root)


def batch(shift: int = 0) -> list[TrainingSample]:
    base = TrainingSample(
        id=UUID(int=1),
        turn_id=UUID(int=2),
        session_id=UUID(int=3),
        user="ann",
        score=1.0,
        weight=1.0,
        prompt_ids=array("i", (5, 6, 7, 8, 9, 10)),
        sampled_ids=array("i", (11, 12, 13)),
        logprobs=array("f", (-5.0, -6.0, -7.0)),
        spans=(),
        temperature=0.8,
        finish_reason=FinishReason.STOP,
        arrived_at=0.0,
    )
    short, reply = array("i", (3,)), array("i", (20 + shift, 21, 22))
    return [base, replace(base, user="bob", score=-1.0, prompt_ids=short, sampled_ids=reply)]


def ref(written: Written, version: int) -> PolicyRef:
    return PolicyRef(
        lineage_id=UUID(int=9), version=version, kind=PolicyKind.LORA, uri=written.uri,
        checksum=written.checksum,
    )  # fmt: skip


BASE = PolicyRef(lineage_id=UUID(int=9), version=0, kind=PolicyKind.BASE)


def train(subject: Learner, shift: int = 0) -> dict[str, float]:
    metrics = subject.train(batch(shift), lambda: False)
    return {name: value for name, value in metrics.items() if name != "train_s"}


def test_another_process_goes_on_to_the_same_numbers(model: Path, tmp_path: Path) -> None:
    first, second = learner(model, tmp_path), learner(model, tmp_path, seed=5)
    first.restore(BASE, None)
    train(first)
    written = first.write(1)
    second.restore(ref(written, 1), written.state)
    assert second.proof() == first.proof()
    assert [train(second, shift) for shift in (1, 2)] == [train(first, shift) for shift in (1, 2)]


def test_metrics_say_what_was_trained(model: Path, tmp_path: Path) -> None:
    subject = learner(model, tmp_path)
    metrics = train(subject)
    assert metrics["samples"] == 2
    assert metrics["tokens"] == 6
    assert metrics["reply_tokens"] == 3
    assert metrics["score_mean"] == 0
    assert metrics["positive"] == 0.5
    assert metrics["advantage_mean"] == 0.375  # 1.5 and -1.5, the disliked one at half weight
    assert metrics["step_share"] in {1, 0.5, 0.25, 0.125}
    assert metrics["step_kl"] <= 0.03
    assert metrics["alarm_reply_tokens"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)  # version 0 is the reference


def test_replies_that_grow_raise_an_alarm_also_after_a_resume(model: Path, tmp_path: Path) -> None:
    first, second = learner(model, tmp_path), learner(model, tmp_path)
    for _ in range(4):
        train(first)
    written = first.write(1)
    second.restore(ref(written, 1), written.state)
    longer = array("i", range(11, 21))
    grown = [replace(one, sampled_ids=longer, logprobs=array("f", [-5.0] * 10)) for one in batch()]
    metrics = second.train(grown, lambda: False)
    assert (metrics["reply_tokens"], metrics["alarm_reply_tokens"]) == (10, 1)


def test_several_minibatches_step_away_from_where_the_batch_began(
    model: Path, tmp_path: Path
) -> None:
    loss = LossSettings(max_step_kl=None)
    config = CONFIG.model_copy(update={"minibatches": 2, "loss": loss})
    subject = Learner(TorchBackend(model, config, "cpu"), config, tmp_path)
    metrics = train(subject)
    # The second minibatch finds a policy that the first has moved; with one, the ratio is 1.
    assert metrics["ratio_max"] != pytest.approx(1, abs=1e-4)
    assert (metrics["samples"], metrics["tokens"]) == (2, 6)
    assert train(learner(model, tmp_path))["ratio_max"] == pytest.approx(1, abs=1e-6)


def test_a_refused_version_leaves_no_trace(model: Path, tmp_path: Path) -> None:
    subject, fresh = learner(model, tmp_path), learner(model, tmp_path)
    train(subject)
    assert subject.version is None
    subject.restore(BASE, None)
    assert train(subject) == train(fresh)


def test_what_is_in_memory_is_not_read_again(model: Path, tmp_path: Path) -> None:
    subject = learner(model, tmp_path)
    train(subject)
    written = subject.write(1)
    (Path(written.uri) / "adapter_config.json").unlink()
    subject.restore(ref(written, 1), written.state)
    assert subject.version == 1
    subject.restore(BASE, None)
    with pytest.raises(CheckpointCorrupt):
        subject.restore(ref(written, 1), written.state)
    assert subject.version is None


def test_probes_are_starts_of_what_was_trained(model: Path, tmp_path: Path) -> None:
    subject = learner(model, tmp_path)
    train(subject)
    first, second = subject.proof().probes
    assert (first.ids, first.start) == ((5, 6, 7, 8, 9, 10, 11, 12), 4)
    assert (second.ids, second.start) == ((3, 20, 21, 22), 1)
    assert [len(values) for values in subject.proof().expected] == [4, 3]
