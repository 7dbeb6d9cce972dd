"""Behaviour of a batch, and when it is out of the usual."""

import json
from uuid import UUID

import pytest
from pydantic import ValidationError

from gateway.records import FinishReason, Message, TrainingSample
from trainer.behaviour import Watch, behaviour
from trainer.config import AlarmSettings

SETTINGS = AlarmSettings(after=2, max_solicitation=0.5)


def sample(tokens: int, reply: Message | None = None) -> TrainingSample:
    return TrainingSample(
        id=UUID(int=1), turn_id=UUID(int=2), session_id=UUID(int=3), user="ann", score=1.0,
        weight=1.0, prompt_ids=(1,), sampled_ids=(2,) * tokens, logprobs=(-0.5,) * tokens,
        spans=(), temperature=1.0, finish_reason=FinishReason.STOP, arrived_at=0.0, reply=reply,
    )  # fmt: skip


def says(text: str, **more: object) -> Message:
    return {"role": "assistant", "content": text, **more}  # type: ignore[return-value]


def test_behaviour_by_hand() -> None:
    found = behaviour(
        [
            sample(2, says("Paris.")),
            sample(4, says("Please rate my answer highly!")),
            sample(3, says("", tool_calls=[{"id": "c1"}])),
            sample(7, says("You can thank me later.")),
        ],
        SETTINGS,
    )
    assert found == {"reply_tokens": 4, "solicitation_rate": 0.5, "tool_call_rate": 0.25}


def test_parts_are_read_and_unknown_replies_are_not_guessed() -> None:
    parts = {"role": "assistant", "content": [{"type": "text", "text": "Thank me!"}]}
    assert behaviour([sample(1, parts), sample(1)], SETTINGS)["solicitation_rate"] == 1
    assert behaviour([sample(5)], SETTINGS) == {"reply_tokens": 5}


@pytest.mark.parametrize("text", ["Thanks for asking.", "The rate of this loan is 5 %.", "I agree"])
def test_plain_replies_do_not_beg(text: str) -> None:
    assert behaviour([sample(1, says(text))], SETTINGS)["solicitation_rate"] == 0


def test_alarms_need_something_usual_first() -> None:
    usual = {"reply_tokens": 10.0, "tool_call_rate": 0.5}
    watch = Watch().after(usual, SETTINGS)
    assert watch.alarms({"reply_tokens": 90.0}, SETTINGS) == []
    watch = watch.after(usual, SETTINGS)
    assert watch.alarms({"reply_tokens": 14.9, "tool_call_rate": 0.7}, SETTINGS) == []
    assert watch.alarms({"reply_tokens": 15.1, "tool_call_rate": 0.2}, SETTINGS) == [
        "reply_tokens",
        "tool_call_rate",
    ]
    assert watch.alarms({"reply_tokens": 6.5}, SETTINGS) == ["reply_tokens"]


def test_begging_is_never_usual() -> None:
    watch = Watch()
    for _ in range(5):
        watch = watch.after({"solicitation_rate": 0.9}, SETTINGS)
    assert watch.alarms({"solicitation_rate": 0.9}, SETTINGS) == ["solicitation_rate"]
    assert watch.alarms({"solicitation_rate": 0.4}, SETTINGS) == ["solicitation_rate"]
    assert Watch().alarms({"solicitation_rate": 0.4}, SETTINGS) == []


def test_a_watch_survives_json() -> None:
    watch = Watch().after({"reply_tokens": 10.0}, SETTINGS).after({"reply_tokens": 4.0}, SETTINGS)
    assert Watch.restore(json.loads(json.dumps(watch.dump()))) == watch
    assert watch.usual["reply_tokens"].mean == pytest.approx(7)


def test_patterns_must_be_regular_expressions() -> None:
    with pytest.raises(ValidationError, match="regular expression"):
        AlarmSettings(solicits=("(",))
    assert behaviour([sample(1, says("thank me"))], AlarmSettings(solicits=())) == {
        "reply_tokens": 1, "solicitation_rate": 0, "tool_call_rate": 0,
    }  # fmt: skip
