from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.records import FinishReason, SessionRecord, TurnRecord, new_id
from gateway.store.conversations import ConversationStore
from gateway.store.database import Database
from gateway.store.writer import TurnWriter
from tests import factories

DIALECT = "openai_responses"


@pytest.fixture
async def database(database_url: str, tmp_path: Any) -> AsyncIterator[Database]:
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, database_url, application="test")
    yield database
    await database.close()


async def stored(database: Database, *records: SessionRecord | TurnRecord) -> None:
    writer = await TurnWriter.open(database)
    try:
        await writer.commit(*records)
    finally:
        await writer.close()


def said(
    of: SessionRecord, text: str, parent: TurnRecord | None = None, **values: Any
) -> TurnRecord:
    return factories.turn(
        of,
        parent,
        dialect=DIALECT,
        messages=({"role": "user", "content": f"{text}?"},),
        reply={"role": "assistant", "content": text},
        **values,
    )


async def test_a_conversation_is_its_chain(database: Database) -> None:
    session = factories.session()
    one = said(session, "one")
    two = said(session, "two", one)
    other = said(session, "other", one)
    await stored(database, session, one, two, other)
    store = ConversationStore(database)
    found = await store.find(session.tenant_id, two.id, DIALECT)
    assert found is not None
    assert [message["content"] for message in found.messages] == ["one?", "one", "two?", "two"]
    assert [turn.turn_id for turn in found.turns] == [one.id, two.id]
    assert (found.reply["content"], found.finish_reason) == ("two", FinishReason.STOP)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (10, 4)
    assert found.created_at == pytest.approx(two.created_at, abs=1e-3)
    replies = await store.replies(session.tenant_id, [one.id, two.id, new_id()], DIALECT)
    assert {id_: reply["content"] for id_, reply in replies.items()} == {
        one.id: "one",
        two.id: "two",
    }


async def test_what_may_not_be_read_is_not_there(database: Database) -> None:
    session, stranger = factories.session(), factories.session()
    open_, unkept = said(session, "open"), said(session, "unkept", response_store=False)
    cut = said(
        session,
        "cut",
        finish_reason=FinishReason.ABORT,
        trainable=False,
        untrainable_reason="aborted",
    )
    chat = factories.turn(session)
    # Its parent is spooled somewhere, or lost.
    orphan = said(session, "orphan", said(session, "missing"))
    await stored(database, session, stranger, open_, unkept, cut, chat, orphan)
    store = ConversationStore(database)
    for turn in (unkept, cut, chat, orphan):
        assert await store.find(session.tenant_id, turn.id, DIALECT) is None
    assert await store.find(stranger.tenant_id, open_.id, DIALECT) is None
    asked = [turn.id for turn in (open_, unkept, cut, chat)]
    assert set(await store.replies(session.tenant_id, asked, DIALECT)) == {open_.id}
    assert await store.replies(stranger.tenant_id, asked, DIALECT) == {}


async def test_a_turn_is_forgotten_once_by_its_tenant(database: Database) -> None:
    session = factories.session()
    turn = said(session, "one")
    follower = said(session, "two", turn)
    await stored(database, session, turn, follower)
    store = ConversationStore(database)
    assert not await store.forget(new_id(), turn.id, DIALECT)
    assert not await store.forget(session.tenant_id, turn.id, "openai_chat")
    assert await store.forget(session.tenant_id, turn.id, DIALECT)
    assert not await store.forget(session.tenant_id, turn.id, DIALECT)
    assert await store.find(session.tenant_id, turn.id, DIALECT) is None
    # What continued it is whole all the same.
    found = await store.find(session.tenant_id, follower.id, DIALECT)
    assert found is not None
    assert len(found.messages) == 4


async def test_a_schema_that_does_not_know_what_is_kept(database: Database) -> None:
    """While servers are upgraded one by one, the column may not be there yet."""
    session = factories.session()
    turn = said(session, "one")
    await stored(database, session, turn)
    async with database.pool.acquire() as connection:
        await connection.execute("ALTER TABLE turns DROP COLUMN response_store")
    database.revision = "0001"
    store = ConversationStore(database)
    assert await store.find(session.tenant_id, turn.id, DIALECT) is not None
    assert turn.id in await store.replies(session.tenant_id, [turn.id], DIALECT)
    with pytest.raises(StoreUnavailable):
        await store.forget(session.tenant_id, turn.id, DIALECT)
