"""Which batches an export is trained in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from gateway.records import FinishReason, TrainingSample, VersionSpan
from tests.tiny_llama import VOCAB, sample
from trainer.checkpoint import Written
from trainer.config import TrainerSettings
from trainer.exported import encode, to_line
from trainer.learner import Learner
from trainer.offline import Offline, train_file


class Pupil:
    """Remembers which sessions each batch was of."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def restore(self, *_: object) -> None:
        pass

    def train(self, samples: Sequence[TrainingSample], _: object) -> dict[str, float]:
        self.batches.append([one.session_id.int for one in samples])
        return {}

    def write(self, _: int) -> Written:
        return Written("policy", "", "state#")


def trained(
    path: Path, samples: Sequence[TrainingSample], **settings: Any
) -> tuple[list[list[int]], Offline]:
    path.write_bytes(b"".join(encode(to_line(one)) for one in samples))
    pupil = Pupil()
    made = TrainerSettings(freshness={"batch": 4}, trainer=settings)
    done = train_file(path, cast("Learner", pupil), made, lambda *_: None)
    return pupil.batches, done


def of(*sessions: int) -> list[TrainingSample]:
    return [
        sample(
            (1, 2), (3,), id=UUID(int=place + 1), session_id=UUID(int=session),
            arrived_at=float(place), spans=(VersionSpan(0, 0, 1),),
        )
        for place, session in enumerate(sessions)
    ]  # fmt: skip


def test_a_session_gives_a_batch_only_so_many_however_long_it_is(tmp_path: Path) -> None:
    # 100 turns of one session come before two of others: more than what is looked at together.
    batches, done = trained(tmp_path / "a", of(*[1] * 100, 2, 3), per_session=2, min_batch=2)
    assert batches[0] == [1, 1, 2, 3]
    assert batches[1:] == [[1, 1]] * 49
    assert (done.steps, done.left_out) == (50, {})


def test_without_a_bound_it_fills_them(tmp_path: Path) -> None:
    batches, done = trained(tmp_path / "a", of(*[1] * 10), per_session=None, min_batch=3)
    assert batches == [[1] * 4] * 2
    assert done.left_out == {"rest_too_small": 2}


@pytest.mark.parametrize(("score", "steps"), [(-1.0, 2), (1.0, 1)])
def test_what_must_not_be_trained_on_is_left_out(tmp_path: Path, score: float, steps: int) -> None:
    cut = [replace(one, finish_reason=FinishReason.LENGTH, score=score) for one in of(1, 2, 3, 4)]
    batches, done = trained(tmp_path / "a", [*of(5, 6, 7, 8), *_later(cut)])
    assert (len(batches), done.left_out["truncated"]) == (steps, 8 - 4 * steps)


def _later(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    return [replace(one, id=UUID(int=one.id.int + 50), arrived_at=99.0) for one in samples]
