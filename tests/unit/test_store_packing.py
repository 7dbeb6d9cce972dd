"""Ids, log-probabilities and JSON as Postgres keeps them; records as the spool keeps them."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from gateway.errors import StoreError
from gateway.records import FeedbackRecord, Sampling, new_id
from gateway.store.frames import decode, encode
from gateway.store.packing import (
    Unstorable,
    json_bytes,
    pack_ids,
    pack_kept,
    pack_logprobs,
    pack_top,
    scrub,
    unpack_ids,
    unpack_kept,
    unpack_logprobs,
    unpack_top,
)
from tests.factories import next_state, session, turn


def test_ids_are_little_endian_int32():
    ids = [0, 1, 49151, 2**31 - 1]
    assert pack_ids(ids) == struct.pack("<4i", *ids)
    assert list(unpack_ids(pack_ids(ids))) == ids
    assert pack_ids([]) == b""


def test_logprobs_are_little_endian_float32():
    values = [-0.5, -1e-6, 0.0, float("-inf")]
    assert pack_logprobs(values) == struct.pack("<4f", *values)
    assert list(unpack_logprobs(pack_logprobs([-0.5, 0.25]))) == [-0.5, 0.25]


def test_sets_of_ids_come_back_and_take_less_than_their_ids():
    rows = [[7, 3, 151_000], [2**31 - 1], [], [5]]
    assert [list(row) for row in unpack_kept(pack_kept(rows))] == rows
    assert unpack_kept(pack_kept([])) == []
    many = [[place * 997 % 151_936 for place in range(at, at + 40)] for at in range(300)]
    assert [list(row) for row in unpack_kept(pack_kept(many))] == many
    assert len(pack_kept(many)) < 3 * 300 * 40


@pytest.mark.parametrize("ids", [[2**31], ["a"], [None]])
def test_ids_that_do_not_fit_are_refused(ids: list[object]):
    with pytest.raises(StoreError, match="token ids"):
        pack_ids(ids)  # type: ignore[arg-type]


def test_json_that_postgres_cannot_hold_is_found_and_scrubbed():
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(Unstorable):
            json_bytes({"content": text})
    assert json_bytes({"a": "é\n"}) == '{"a":"é\\n"}'.encode()
    assert scrub({"a\0": ["b\0", 1, None, ("c\ud800",)]}) == {
        "a\ufffd": ["b\ufffd", 1, None, ("c?",)]
    }


def test_records_survive_the_spool():
    one = session(external_id="naïve", client="agent/1")
    first = turn(
        one,
        sampling=Sampling(temperature=0.7, logit_bias={5: -1.5}, stop=("a", "b")),
        response_fields={"metadata": {"a": "é"}, "tools": [["f", {"strict": None}]]},
    )
    state = next_state(first, judge=False)
    said = FeedbackRecord(
        id=new_id(), tenant_id=one.tenant_id, turn_id=first.id, score=1.0, text="good"
    )
    found = decode(encode([one, first, state, said]))
    assert found[0] == one
    assert found[2] == state
    assert found[3] == said
    back = found[1]
    assert (list(back.sampled_ids), list(back.logprobs)) == (
        list(first.sampled_ids),
        list(first.logprobs),
    )
    assert (back.spans, back.sampling, back.chain_hash) == (
        first.spans,
        first.sampling,
        first.chain_hash,
    )
    assert back.response_fields == {"metadata": {"a": "é"}, "tools": [["f", {"strict": None}]]}


def test_a_frame_of_an_earlier_build_says_no_more_than_it_did():
    first = turn(session(), response_fields={"user": "u"})
    [(name, fields)] = msgspec.msgpack.decode(encode([first]))
    del fields["response_fields"]
    [found] = decode(msgspec.msgpack.encode([(name, fields)]))
    assert (found.id, found.response_fields) == (first.id, None)


def test_arrays_survive_the_spool_and_other_objects_are_refused():
    one = session()
    found = decode(encode([turn(one, sampled_ids=np.array([7, 8], dtype=np.int32))]))
    assert list(found[0].sampled_ids) == [7, 8]
    with pytest.raises(StoreError, match="cannot be spooled"):
        encode([turn(one, reply={"content": object()})])


def test_likeliest_tokens_survive_as_text():
    rows = (((1, -0.5), (2**31 - 1, -1.25)), (), ((0, 0.0),))
    assert unpack_top(pack_top(rows)) == rows
    assert unpack_top(pack_top(())) == ()


def test_bytes_that_are_no_record_are_refused():
    for payload in (b"", b"\xc1", encode([session()])[:-3], b"\x91\x92\xa1x\x80"):
        with pytest.raises(StoreError, match="cannot be read"):
            decode(payload)
