"""What redaction finds is stored nowhere, and the conversation goes on all the same."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from gateway.config import CaptureSettings, RedactionSettings
from gateway.records import Judgement, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.packing import unpack_ids, unpack_logprobs
from gateway.store.schema import Base
from gateway.store.writer import TurnWriter
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.integration.test_gateway_sessions import post

MAIL, CARD, PHONE = "ann@example.org", "4111 1111 1111 1111", "+44 20 7946 0958"
SECRETS = (MAIL, CARD, PHONE)


@pytest.fixture
async def redacting(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    redaction = RedactionSettings(hash_key=SecretStr("a-key-of-sixteen"))
    async with fake_gateway(
        database_url, tiny_model, tmp_path, capture=CaptureSettings(redaction=redaction)
    ) as running:
        yield running


async def stored(gateway: Gateway) -> str:
    """Every row of every table, as text; bytes in hexadecimal."""
    rows: list[str] = []
    for table in Base.metadata.tables:
        found = await gateway.rows(f"SELECT r::text AS row FROM {table} r")
        rows += [row["row"] for row in found]
    return "\n".join(rows)


def spelled(gateway: Gateway, text: str) -> str:
    """A text's ids as they would stand in a column."""
    return array("i", gateway.services.tokenizer.encode(text)).tobytes().hex()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_what_is_found_is_stored_nowhere_and_the_session_goes_on(redacting: Gateway) -> None:
    gateway = redacting
    talk = [user(f"I am {MAIL}. The quick brown fox?")]
    for said, then in (
        ("jumps", f"pay by {CARD}"),
        (f"call {PHONE}", "over the lazy dog"),
        ("fox", None),
    ):
        gateway.says(said)
        reply = await post(gateway, talk)
        # Whoever asks sees all of it.
        assert reply == said
        talk += [{"role": "assistant", "content": reply}]
        talk += [user(then)] if then else []
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    # The engine was given every word.
    engine_saw = [one["input_ids"] for one in gateway.engine.requests]
    assert MAIL in gateway.services.tokenizer.decode(engine_saw[-1])

    first, second, third = turns
    assert [turn["parent_id"] for turn in turns] == [None, first["id"], second["id"]]
    assert len({turn["session_id"] for turn in turns}) == 1
    # The last one says nothing new that was found, and its prompt shows all that came before.
    for turn in turns:
        assert (turn["redacted"], turn["trainable"]) == (True, False)
        assert turn["untrainable_reason"] == "redacted"
        assert (turn["prompt_ids"], turn["sampled_ids"], turn["logprobs"]) == (b"", b"", b"")
    assert first["messages"][0]["content"] == "I am [redacted:email]. The quick brown fox?"
    assert second["reply"]["content"] == "call [redacted:phone]"
    followed = await gateway.rows("SELECT turn_id, messages FROM next_states ORDER BY turn_id")
    assert [(row["turn_id"], row["messages"][0]["content"]) for row in followed] == [
        (first["id"], "pay by [redacted:card]"),
        (second["id"], "over the lazy dog"),
    ]

    async with aiohttp.ClientSession(
        headers={"authorization": f"Bearer {gateway.keys.agent}"}
    ) as http:
        url = f"{gateway.url}/v1/turns/{third['id']}/feedback"
        async with http.post(url, json={"score": 1, "text": f"thanks, {MAIL}"}) as answer:
            assert answer.status == 202, await answer.text()
    everything = await stored(gateway)
    assert "thanks, [redacted:email]" in everything
    for secret in SECRETS:
        assert secret not in everything
        assert spelled(gateway, secret) not in everything
        assert spelled(gateway, f" {secret}") not in everything


async def test_what_a_response_repeats_is_stored_without_what_is_found(
    redacting: Gateway,
) -> None:
    said: Any = {
        "instructions": f"Answer {MAIL}.",
        "metadata": {"card": CARD, "type": PHONE},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"const": MAIL}}},
        "tools": [{"type": "function", "name": "f", "parameters": {"title": MAIL}, "strict": True}],
    }
    redacting.says("dog")
    redacting.says("fox")
    async with redacting.client() as client:
        first = await client.responses.create(model="tiny", input="Hi", **said)
        assert first.instructions == said["instructions"]
        found = await client.responses.retrieve(first.id)
        clean = await client.responses.create(model="tiny", input="fox", metadata={"to": MAIL})
        again = await client.responses.retrieve(clean.id)
    gap = "[redacted:email]"
    assert found.instructions == f"Answer {gap}."
    assert found.metadata == {"card": "[redacted:card]", "type": "[redacted:phone]"}
    assert found.tools[0].parameters == {"title": gap}
    # The ids are gone; what the client was told of their number is not.
    assert found.usage == first.usage
    assert (again.metadata, again.output_text) == ({"to": gap}, clean.output_text)
    everything = await stored(redacting)
    for secret in SECRETS:
        assert secret not in everything
    # Metadata is in no prompt: such a turn can be trained on.
    rows = await redacting.rows("SELECT redacted, trainable FROM turns ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [(True, False), (False, True)]


async def test_a_redacted_turn_is_judged_and_not_trained_on(redacting: Gateway) -> None:
    redacting.says("dog")
    await post(redacting, [user(MAIL)])
    redacting.says("fox")
    await post(redacting, [user(MAIL), {"role": "assistant", "content": "dog"}, user("lazy")])
    claims, worker = JudgeClaims(redacting.services.database), new_id()
    (job,) = await claims.claim(worker, 10, 60)
    assert job.next_state[0]["content"] == "lazy"
    judgement = Judgement(judge="test", score=1.0)
    assert await claims.finish(worker, job, judgement, "binary_rl")
    (judged,) = await redacting.rows("SELECT turn_id, score FROM judgements")
    assert (judged["turn_id"], judged["score"]) == (job.turn_id, 1.0)
    (verdict,) = await redacting.rows("SELECT outcome, reason FROM verdicts")
    assert (verdict["outcome"], verdict["reason"]) == ("untrainable", "redacted")
    assert await redacting.rows("SELECT FROM samples") == []


async def test_ids_of_other_turns_are_whole_and_aligned(redacting: Gateway) -> None:
    """Beside a conversation with gaps, and one that has dropped what was found."""
    redacting.says("dog")
    await post(redacting, [user(MAIL)])
    talk = [user("The quick brown fox?")]
    sampled = redacting.says("jumps")
    reply = await post(redacting, talk)
    more = redacting.says("dog")
    await post(redacting, [*talk, {"role": "assistant", "content": reply}, user("lazy")])
    _, first, second = await redacting.rows("SELECT * FROM turns ORDER BY id")
    requests = redacting.engine.requests
    assert list(unpack_ids(first["prompt_ids"])) == requests[1]["input_ids"]
    assert list(unpack_ids(first["sampled_ids"])) == sampled
    assert second["shared_len"] == first["prompt_len"] + first["completion_len"]
    whole = requests[1]["input_ids"] + sampled + list(unpack_ids(second["prompt_ids"]))
    assert whole == requests[2]["input_ids"]
    assert list(unpack_ids(second["sampled_ids"])) == more
    for turn in (first, second):
        assert (turn["redacted"], turn["trainable"]) == (False, True)
        logprobs = unpack_logprobs(turn["logprobs"])
        assert len(logprobs) == turn["completion_len"]
        assert max(logprobs) <= 0


async def test_what_waits_on_disk_has_the_same_gaps(
    redacting: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def nothing(_: TurnWriter) -> None:
        """Postgres stays away."""

    writer = redacting.services.writer
    monkeypatch.setattr(TurnWriter, "_drain", nothing)
    writer._away = True
    redacting.says(f"call {PHONE}")
    await post(redacting, [user(f"I am {MAIL}")])
    assert writer.spooled
    (file,) = (tmp_path / "spool").glob("*.spool")
    written = file.read_bytes()
    assert b"[redacted:email]" in written
    assert b"[redacted:phone]" in written
    assert MAIL.encode() not in written
    assert PHONE.encode() not in written


async def test_the_same_conversation_is_stored_whole_where_nothing_is_redacted(
    gateway: Gateway,
) -> None:
    """The searches above would find it."""
    gateway.says(f"call {PHONE}")
    await post(gateway, [user(f"I am {MAIL}")])
    everything = await stored(gateway)
    assert MAIL in everything
    assert spelled(gateway, f" {PHONE}") in everything or spelled(gateway, PHONE) in everything
