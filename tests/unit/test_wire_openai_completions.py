from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ServerSettings
from gateway.errors import EngineUnavailable, InvalidRequest, RequestError
from gateway.records import Delta, FinishReason, Reply, Sampling, TurnRequest, Usage
from gateway.resolve import chain, seed
from gateway.wire.base import TokenLogprob
from gateway.wire.openai_completions import (
    OpenAICompletions,
    each_prompt,
    prompts_of,
    with_prompts,
)
from tests.examples import examples

COMPLETIONS = OpenAICompletions()
TURN = UUID("0199aaaa-0000-7000-8000-000000000001")
USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)
SHOWN_USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def parse(headers: Mapping[str, str] | None = None, /, **fields: Any) -> TurnRequest:
    body = json.dumps({"model": "m", "prompt": "Once", **fields}).encode()
    return COMPLETIONS.parse(body, headers or {}, ServerSettings())


def test_a_small_request_has_the_limit_of_the_original() -> None:
    found = parse()
    assert (found.dialect, found.model) == ("openai_completions", "m")
    assert prompts_of(found) == ("Once",)
    assert found.sampling == Sampling(max_tokens=16)
    assert (found.stream, found.choices, found.top_logprobs, found.tools) == (False, 1, None, ())


def test_a_full_request_is_read_in_full() -> None:
    found = parse(
        {"x-session-id": "s", "x-stainless-retry-count": "1"},
        prompt=[[1, 2]],
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        n=2,
        best_of=2,
        echo=False,
        suffix=None,
        logprobs=3,
        stop=["a"],
        seed=4,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"7": 1},
        stream=True,
        stream_options={"include_usage": True},
        user="u",
        never_heard_of=1,
    )
    assert prompts_of(found) == ((1, 2),)
    assert found.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={7: 1},
        seed=4,
        stop=("a",),
        max_tokens=5,
    )
    assert (found.stream, found.include_usage, found.choices, found.top_logprobs) == (
        True, True, 2, 3,
    )  # fmt: skip
    assert (found.session_name, found.retry_count, found.user) == ("s", 1, "u")


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("Once", ("Once",)),
        (["Once"], ("Once",)),
        ([1, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        (["a", "b", "a"], ("a", "b", "a")),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts(prompt: Any, found: Any) -> None:
    asked = parse(prompt=prompt)
    assert prompts_of(asked) == found
    assert asked.choices == len(found)


def test_each_prompt_is_a_request_of_its_own() -> None:
    """Choices and seeds count on from one to the next, and no two are by one key."""
    asked = parse({"idempotency-key": "k"}, prompt=["a", "a"], n=3, seed=2**63 - 2)
    assert asked.choices == 6
    first, second = each_prompt(with_prompts(asked, [[5, 6], [7]], ["a", "a"]))
    assert (first.prompt_ids, second.prompt_ids) == ((5, 6), (7,))
    assert (first.choices, second.choices) == (3, 3)
    assert (first.sampling.seed, second.sampling.seed) == (2**63 - 2, 1)
    assert (first.idempotency_key, second.idempotency_key) == ("k", "k#1")
    assert first.messages == second.messages
    for one in each_prompt(with_prompts(parse(prompt=["a", "b"]), [[5], [6]], ["a", "b"])):
        assert (one.sampling.seed, one.idempotency_key) == (None, None)


@pytest.mark.parametrize(("prompts", "n"), [(9, 1), (5, 2), (2, 5), (1000, None)])
def test_all_choices_of_a_request_are_bounded_together(prompts: int, n: int | None) -> None:
    assert parse(prompt=["a"] * 4, n=2).choices == parse(prompt=["a"] * 8).choices == 8
    with pytest.raises(InvalidRequest, match="at most 8 choices") as caught:
        parse(prompt=["a"] * prompts, n=n)
    assert caught.value.param == "prompt"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [["a"], [1]]}, "prompt[0]"),
    ({"prompt": [[1], [True]]}, "prompt[1]"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [[1], 2]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"echo": True, "logprobs": 0}, "echo"),
    ({"echo": 1}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"n": 9}, "n"),
    ({"logprobs": 6}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"stream_options": {}}, "stream_options"),
    ({"model": ""}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    status, _, body = COMPLETIONS.error(caught.value)
    assert (status, json.loads(body)["error"]["param"]) == (400, param)


def test_what_is_said_of_messages_is_said_of_the_prompt() -> None:
    _, _, body = COMPLETIONS.error(InvalidRequest("no", param="messages"))
    assert json.loads(body)["error"]["param"] == "prompt"


def test_a_prompt_is_never_taken_for_a_chat() -> None:
    [asked] = each_prompt(with_prompts(parse(), [[5, 6]], ["Once"]))
    assert asked.prompt_ids == (5, 6)
    start = seed(TURN, "m")
    chat = chain([{"role": "user", "content": "Once"}], start)
    assert chain(asked.messages, start) != chat


LOGPROBS = [
    TokenLogprob(
        text="Hi", raw=b"Hi", logprob=-0.5, top=(TokenLogprob(text="Ho", raw=b"Ho", logprob=-0.2),)
    ),
    TokenLogprob(text="!", raw=b"!", logprob=-1.0, top=()),
]


def test_a_whole_reply() -> None:
    encoder = COMPLETIONS.encoder(parse(logprobs=1), TURN, 7, "m")
    whole = encoder.whole([Reply(text="Hi!")], [FinishReason.STOP], USAGE, [LOGPROBS])
    assert json.loads(whole) == {
        "id": f"cmpl-{TURN.hex}",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "text": "Hi!",
                "index": 0,
                "logprobs": {
                    "tokens": ["Hi", "!"],
                    "token_logprobs": [-0.5, -1.0],
                    "top_logprobs": [{"Ho": -0.2, "Hi": -0.5}, {"!": -1.0}],
                    "text_offset": [0, 2],
                },
                "finish_reason": "stop",
            }
        ],
        "usage": SHOWN_USAGE,
    }


def frames(data: bytes) -> list[dict[str, Any]]:
    *events, done = data.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream(usage: bool) -> None:
    asked = parse(stream=True, logprobs=0, n=2, stream_options={"include_usage": usage})
    encoder = COMPLETIONS.encoder(asked, TURN, 7, "m")
    assert encoder.start(3) == b""
    data = encoder.delta(0, Delta(text="Hi"), LOGPROBS[:1])
    data += encoder.delta(1, Delta(text="Yo"))
    data += encoder.delta(0, Delta(text="!"), LOGPROBS[1:])
    data += encoder.finish(0, FinishReason.STOP) + encoder.finish(1, FinishReason.LENGTH)
    events = frames(data + encoder.end(USAGE))
    if usage:
        last = events.pop()
        assert (last["choices"], last["usage"]) == ([], SHOWN_USAGE)
    assert {event["id"] for event in events} == {f"cmpl-{TURN.hex}"}
    assert [event.get("usage", "absent") for event in events] == [None if usage else "absent"] * 5
    choices = [event["choices"][0] for event in events]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
        (0, "Hi", None), (1, "Yo", None), (0, "!", None), (0, "", "stop"), (1, "", "length"),
    ]  # fmt: skip
    assert [c["logprobs"] and c["logprobs"]["text_offset"] for c in choices] == [
        [0], None, [2], None, None,
    ]  # fmt: skip
    assert choices[0]["logprobs"]["top_logprobs"] is None


def repeated(**fields: Any) -> TurnRequest:
    asked = parse(prompt=["Hi, ", "Yo, "], n=2, echo=True, **fields)
    return with_prompts(asked, [[1], [2]], ["Hi, ", "Yo, "])


def test_a_whole_reply_after_its_prompt() -> None:
    encoder = COMPLETIONS.encoder(repeated(), TURN, 7, "m")
    replies = [Reply(text=text) for text in "abcd"]
    found = json.loads(encoder.whole(replies, [FinishReason.STOP] * 4, USAGE))["choices"]
    assert [(one["index"], one["text"]) for one in found] == [
        (0, "Hi, a"), (1, "Hi, b"), (2, "Yo, c"), (3, "Yo, d"),
    ]  # fmt: skip


def test_a_stream_after_its_prompts() -> None:
    asked = repeated(stream=True, stream_options={"include_usage": True})
    encoder = COMPLETIONS.encoder(asked, TURN, 7, "m")
    data = encoder.start(3) + encoder.delta(2, Delta(text="c"))
    data += encoder.finish(2, FinishReason.LENGTH)
    events = frames(data + encoder.end(USAGE))[:-1]
    assert [event["usage"] for event in events] == [None] * 6
    choices = [event["choices"][0] for event in events]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
        (0, "Hi, ", None), (1, "Hi, ", None), (2, "Yo, ", None), (3, "Yo, ", None),
        (2, "c", None), (2, "", "length"),
    ]  # fmt: skip


def test_a_stream_that_breaks() -> None:
    encoder = COMPLETIONS.encoder(parse(stream=True), TURN, 7, "m")
    frame = encoder.error_event(EngineUnavailable("secret", engine="e"))
    assert b"secret" not in frame
    assert json.loads(frame.removeprefix(b"data: "))["error"]["code"] == "engine_unavailable"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=6,
)


@examples(100)
@given(
    st.dictionaries(
        st.sampled_from(
            ["prompt", "max_tokens", "n", "logprobs", "stop", "echo", "stream", "logit_bias"]
        ),
        _JSON,
    )
)
def test_any_body_is_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        found = parse(**fields)
    except RequestError as error:
        found = None
        status, _, _ = COMPLETIONS.error(error)
    if found is None:
        assert status == 400
    else:
        assert 1 <= found.choices <= 8
        assert all(prompts_of(found))
