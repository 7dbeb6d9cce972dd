from __future__ import annotations

import json

import pytest

from gateway.engine.openai_codec import TextReader
from gateway.records import FinishReason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.LENGTH),
        ("anything_else", FinishReason.STOP),
    ],
)
def test_a_reply_that_was_cut_or_filtered_is_not_complete(said: str, reason: FinishReason) -> None:
    reader = TextReader("upstream")
    choice = {"index": 0, "delta": {"content": "Once upon"}, "finish_reason": said}
    reader.read(json.dumps({"choices": [choice]}).encode())
    assert reader.finish().reason is reason
    assert reader.finish().detail == ("content_filter" if said == "content_filter" else None)


def test_a_refusal_is_no_whole_reply() -> None:
    reader = TextReader("upstream")
    for choice in (
        {"index": 0, "delta": {"refusal": "I cannot help "}},
        {"index": 0, "delta": {"refusal": "with that."}, "finish_reason": None},
    ):
        reader.read(json.dumps({"choices": [choice]}).encode())
    [delta] = reader.read(
        b'{"choices": [{"delta": {"refusal": " Sorry."}, "finish_reason": "stop"}]}'
    )
    assert delta.text == " Sorry."
    assert reader.finish().reason is FinishReason.LENGTH
    assert reader.finish().detail == "refusal"
