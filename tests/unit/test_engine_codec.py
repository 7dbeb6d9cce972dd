from __future__ import annotations

import json
import math
import random
from array import array
from uuid import UUID

import pytest

from gateway.engine.codec import (
    EventSplitter,
    decode_event,
    generate_body,
    logprob_values,
    refusal,
    sampling_params,
    words,
)
from gateway.engine.ids_json import ids_json
from gateway.engine.scoring import score_body
from gateway.errors import EngineOverloaded, EngineRejected, EngineUnavailable
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling

LINEAGE = UUID(int=5)
BASE = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE)
LORA = PolicyRef(lineage_id=LINEAGE, version=3, kind=PolicyKind.LORA, uri="/weights/3")


def test_what_the_client_left_open_is_sent_neutral() -> None:
    assert sampling_params(Sampling(), ()) == {
        "max_new_tokens": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


def test_every_parameter_reaches_the_engine() -> None:
    sampling = Sampling(
        temperature=0.0,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        frequency_penalty=0.1,
        presence_penalty=-0.2,
        repetition_penalty=1.1,
        logit_bias={17: -100.0},
        seed=0,
        stop=("END", "STOP"),
        max_tokens=0,
        grammar={"json_schema": {"type": "object"}},
    )
    assert sampling_params(sampling, (2, 7)) == {
        "max_new_tokens": 0,
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"17": -100.0},
        "sampling_seed": 0,
        "stop": ["END", "STOP"],
        "stop_token_ids": [2, 7],
        "json_schema": '{"type":"object"}',
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


def test_a_grammar_in_the_engines_words_is_kept() -> None:
    assert sampling_params(Sampling(grammar={"regex": "[0-9]+"}), ())["regex"] == "[0-9]+"
    with pytest.raises(ValueError, match="unknown kind of grammar 'max_new_tokens'"):
        sampling_params(Sampling(grammar={"max_new_tokens": "9"}), ())


@pytest.mark.parametrize(("policy", "path"), [(BASE, None), (LORA, f"{LINEAGE.hex}-v3")])
def test_a_request_names_the_adapter_of_its_version(policy: PolicyRef, path: str | None) -> None:
    request = Generation(rid="r", input_ids=(1, 2), sampling=Sampling(), policy=policy)
    body = json.loads(generate_body(request))
    assert body.get("lora_path") == path
    assert (body["rid"], body["input_ids"], body["stream"]) == ("r", [1, 2], True)
    assert body["return_logprob"] is True
    scored = json.loads(score_body("r", [1, 2, 3], 2, policy))
    assert scored.get("lora_path") == path
    assert scored["logprob_start_len"] == 1
    assert scored["sampling_params"]["max_new_tokens"] == 0


def test_events_are_whole_wherever_the_network_cuts_them() -> None:
    wire = b'data: {"a":1}\n\ndata: {"b":"x y"}\n\n\n\ndata: [DONE]\n\n'
    for cut in range(len(wire)):
        splitter = EventSplitter()
        found = splitter.feed(wire[:cut]) + splitter.feed(wire[cut:])
        assert found == [b'{"a":1}', b'{"b":"x y"}']


def test_a_reply_of_another_protocol_is_no_engine() -> None:
    with pytest.raises(EngineUnavailable, match="cannot be read"):
        decode_event(b'{"output_ids": "abc"}', "e")
    with pytest.raises(EngineUnavailable, match="cannot be read"):
        decode_event(b"<html>", "e")


def test_null_logprobs_stay_visible() -> None:
    values = logprob_values([(-0.5, 3, None), (None, 4, None)])
    assert values[0] == -0.5
    assert math.isnan(values[1])


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "temperature must be positive", EngineRejected),
        (404, "Not Found", EngineRejected),
        (401, "Unauthorized", EngineRejected),
        (400, "Got LoRA adapter that has never been loaded: a", EngineUnavailable),
        (503, "The request queue is full.", EngineOverloaded),
        (429, "slow down", EngineOverloaded),
        (503, "Service Unavailable", EngineUnavailable),
        (500, "Internal Server Error", EngineUnavailable),
    ],
)
def test_what_a_status_means(status: int, message: str, kind: type[Exception]) -> None:
    error = refusal(status, message, "e")
    assert type(error) is kind
    assert (error.message, error.engine) == (message, "e")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"error":"unknown field `x`"}', "unknown field `x`"),
        (b'{"success":false,"error_message":"no such adapter"}', "no such adapter"),
        (b'{"success":false,"message":"no weights"}', "no weights"),
        (b'{"detail":"queue is full"}', "queue is full"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"\xff" * 2000, "\ufffd" * 500),
    ],
)
def test_the_engines_words_are_found(body: bytes, said: str) -> None:
    assert words(body) == said


@pytest.mark.parametrize("size", [0, 3, 511, 512, 20_000])
@pytest.mark.parametrize("vocabulary", [300, 150_000, 2**20, 2**31])
def test_ids_are_written_as_json_whatever_their_number(size: int, vocabulary: int) -> None:
    pick = random.Random(size)
    ids = [0, vocabulary - 1, *(pick.randrange(vocabulary) for _ in range(size))][:size]
    assert json.loads(ids_json(array("i", ids))) == ids
    assert json.loads(ids_json(tuple(ids))) == ids
