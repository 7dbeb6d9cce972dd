"""What is exported is read back exactly, and nothing else is read."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from gateway.errors import TrainerError
from gateway.records import FinishReason, Teaching, TrainingSample, VersionSpan
from trainer.exported import decode, encode, to_line

SAMPLE = TrainingSample(
    id=UUID(int=1), turn_id=UUID(int=2), session_id=UUID(int=3), user="k:ann", score=-1.0,
    weight=0.5, prompt_ids=[5, 6, 7], sampled_ids=[8, 9, 10], logprobs=[-0.5, -1.25, -2.0],
    spans=(VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)), temperature=0.7,
    finish_reason=FinishReason.LENGTH, arrived_at=12.5, rule="redo", group="g",
)  # fmt: skip


def test_a_line_by_hand() -> None:
    line = to_line(SAMPLE, "dropped", "stale")
    assert line.ids == [5, 6, 7, 8, 9, 10]
    assert line.mask == [0, 0, 0, 1, 1, 1]
    assert line.logprobs == [0, 0, 0, -0.5, -1.25, -2]
    assert line.versions == [-1, -1, -1, 3, 4, 4]
    assert (line.score, line.state, line.reason) == (-1, "dropped", "stale")


def test_lines_come_back_as_the_samples_they_were() -> None:
    taught = Teaching(
        teacher="fixed", lineage_id=None, version=None, model="m", hint="Shorter.", prompt_len=9,
        logprobs=[-0.5, -0.25, -1.0], top_ids=[[1], [2], [3]],
        top_logprobs=[[-1.0], [-2.0], [-3.0]],
    )  # fmt: skip
    other = replace(SAMPLE, id=UUID(int=9), rule=None, group=None, depth=3, teaching=taught)
    other = replace(other, kept=[[8, 2], [9], [10, 1]])
    assert list(decode([encode(to_line(SAMPLE)), b"\n", encode(to_line(other))])) == [SAMPLE, other]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": [0, 0, 0, 1, 1]}, "differ in length"),
        ({"mask": [0, 0, 0, 1, 0, 1]}, "the last ones"),
        ({"versions": [-1, -1, -1, 3, -1, 4]}, "has no version"),
        ({"finish_reason": "bored"}, "bored"),
        ({"score": "good"}, "float"),
        ({"ids": None}, "array"),
    ],
)
def test_what_is_no_sample_is_refused_by_its_line(changes: dict[str, object], said: str) -> None:
    good = msgspec.json.decode(encode(to_line(SAMPLE)))
    bad = msgspec.json.encode({**good, **changes})
    with pytest.raises(TrainerError, match=rf"line 2 .*{said}"):
        list(decode([encode(to_line(SAMPLE)), bad]))
    with pytest.raises(TrainerError, match="line 1"):
        list(decode([b"not json"]))
