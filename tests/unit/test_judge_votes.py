from __future__ import annotations

import pytest

from gateway.errors import JudgeError, JudgeUnavailable
from judge.answer import Answer
from judge.votes import Vote, agreement, cast, majority

ANSWER = Answer(text="x" * 3000, prompt_tokens=7, completion_tokens=3, ms=12.34)


@pytest.mark.parametrize(
    ("votes", "score"),
    [
        ([1, 1, -1], 1),
        ([1, -1, -1], -1),
        ([0, 0, 1], 0),
        ([1, -1], 0),
        ([1, 0, -1], 0),
        ([1, 1, -1, -1, 0], 0),
        ([1, -1, None], 0),
        ([1, None, None], 1),
        ([None, -1, -1], -1),
        ([None, None, None], None),
        ([], None),
    ],
)
def test_the_majority_of_the_votes_that_could_be_read(
    votes: list[int | None], score: int | None
) -> None:
    assert majority(votes) == score


def test_agreement_is_the_share_of_the_most_frequent_vote() -> None:
    assert agreement([1, 1, -1, None]) == pytest.approx(2 / 3)
    assert agreement([0]) == 1
    assert agreement([None]) is None


async def test_votes_that_failed_leave_those_that_did_not() -> None:
    answers = iter([ANSWER, JudgeError("refused"), JudgeUnavailable("away")])

    async def ask() -> Answer:
        result = next(answers)
        if isinstance(result, Answer):
            return result
        raise result

    votes = await cast(3, ask)
    assert votes == (Vote(answer=ANSWER), Vote(error="refused"), Vote(error="away"))
    assert votes[0].record(score=1) == {
        "score": 1, "raw": "x" * 2000, "prompt_tokens": 7, "completion_tokens": 3, "ms": 12.3,
    }  # fmt: skip
    assert votes[1].record(score=None) == {"score": None, "error": "refused"}


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([JudgeError("a"), JudgeUnavailable("b"), JudgeError("c")], JudgeUnavailable),
        ([JudgeError("a"), JudgeError("b")], JudgeError),
        ([JudgeError("a"), KeyError("bug")], KeyError),
    ],
)
async def test_no_answer_at_all_is_an_error(
    errors: list[Exception], raised: type[Exception]
) -> None:
    left = iter(errors)

    async def ask() -> Answer:
        raise next(left)

    with pytest.raises(Exception) as caught:
        await cast(len(errors), ask)
    assert type(caught.value) is raised
