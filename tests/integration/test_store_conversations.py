from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import DatabaseSettings
from gateway.records import SAME_TOOLS, FinishReason, SessionRecord, TurnRecord, new_id
from gateway.store.conversations import ConversationStore
from gateway.store.database import Database
from gateway.store.writer import TurnWriter
from tests import factories
from tests.factories import digest

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


async def test_tools_stand_where_they_were_offered_first(database: Database) -> None:
    session = factories.session()
    first, later = ({"type": "function", "name": "f"},), ({"type": "function", "name": "g"},)
    line = [said(session, "one", tools=first)]
    for text, tools in (("two", SAME_TOOLS), ("three", ()), ("four", later), ("five", SAME_TOOLS)):
        line.append(said(session, text, line[-1], tools=tools))
    await stored(database, session, *line)
    store = ConversationStore(database)
    found = [await store.find(session.tenant_id, turn.id, DIALECT) for turn in line]
    assert [each and each.tools for each in found] == [first, first, (), later, later]


async def test_instructions_stand_where_they_were_new(database: Database) -> None:
    """Heads say which turns had the same; `True` stands for those of another turn."""
    session = factories.session()
    first, later = digest("first"), digest("later")

    def saying(text: str | bool, head: bytes, parent: TurnRecord | None = None) -> TurnRecord:
        fields = {"instructions": text, "user": "u"}
        return said(session, "x", parent, tools_hash=head, response_fields=fields)

    told = {"role": "system", "content": "Be brief.", "instructions": True}
    root = replace(saying(True, first), messages=(told, {"role": "user", "content": "x?"}))
    # Other tools, the same instructions.
    two = saying(True, first[:16] + later[16:], root)
    three = saying("Be long. ", later, two)
    four = saying(True, later, three)
    five = saying(True, first, four)
    # What it goes back to was not kept.
    lost = saying(True, digest("lost"), five)
    none = said(session, "x", five, tools_hash=first, response_fields={"user": "u"})
    old = said(session, "x", five, tools_hash=first)
    line = [root, two, three, four, five, lost, none, old]
    await stored(database, session, *line)
    store = ConversationStore(database)
    found = [await store.find(session.tenant_id, turn.id, DIALECT) for turn in line]
    texts = ["Be brief.", "Be brief.", "Be long. ", "Be long. ", "Be brief.", None]
    assert [each and each.response_fields for each in found] == [
        *({"instructions": text, "user": "u"} for text in texts),
        {"user": "u"},
        None,
    ]


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
    turn = said(session, "one", response_fields={"user": "u"})
    follower = said(session, "two", turn)
    await stored(database, session, turn, follower)
    store = ConversationStore(database)
    assert not await store.forget(new_id(), turn.id, DIALECT)
    assert not await store.forget(session.tenant_id, turn.id, "openai_chat")
    assert await store.forget(session.tenant_id, turn.id, DIALECT)
    assert not await store.forget(session.tenant_id, turn.id, DIALECT)
    assert await store.find(session.tenant_id, turn.id, DIALECT) is None
    sql = "SELECT response_fields FROM turns WHERE id = $1"
    assert await database.fetchval(sql, turn.id) is None
    # What continued it is whole all the same.
    found = await store.find(session.tenant_id, follower.id, DIALECT)
    assert found is not None
    assert len(found.messages) == 4
