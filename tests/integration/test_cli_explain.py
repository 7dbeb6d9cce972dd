"""`nextstate explain` on a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.config import DatabaseSettings
from gateway.errors import NotFound
from gateway.records import FinishReason, TurnKind, TurnRecord
from gateway.store.database import Database
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

Call = Callable[..., str]
ONE = session(external_id="chat-7", client="agent/1", resolved_by="named_prefix", ambiguous=True)
OTHER = session(parent_session_id=ONE.id)
SECRET = "What nobody may read"


def turns() -> list[TurnRecord]:
    first = turn(ONE, resolve_rule="named", kind=TurnKind.UNKNOWN, kind_rule="first_turn",
                 messages=({"role": "user", "content": SECRET},), created_at=1.0)  # fmt: skip
    cut = turn(ONE, first, resolve_rule="named_echo_branch", branch_reason="history_edited",
               delivered=False, finish_reason=FinishReason.ABORT, trainable=False,
               untrainable_reason="aborted", created_at=2.0)  # fmt: skip
    again = turn(ONE, first, resolve_rule="retry", retry_of=cut.id, created_at=3.0,
                 finish_reason=FinishReason.LENGTH, finish_detail="content_filter")  # fmt: skip
    strange = turn(OTHER, first, resolve_rule="of_a_later_build", kind=TurnKind.SIDE,
                   kind_rule="subagent", created_at=4.0)  # fmt: skip
    return [first, cut, again, strange]


STORED = turns()


@pytest.fixture
async def call(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    followed = next_state(STORED[0]), next_state(STORED[2], how="rolled_back")
    await writer.commit(ONE, OTHER, *STORED, *followed)
    await writer.close()
    await database.close()
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["explain", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


@pytest.mark.parametrize(
    "name", [str(ONE.id), "chat-7", str(STORED[1].id)], ids=["session", "name", "turn"]
)
async def test_a_session_is_found_by_its_id_a_turn_or_its_name(call: Call, name: str) -> None:
    text = await asyncio.to_thread(call, name, "--json")
    assert SECRET not in text
    [found] = json.loads(text)
    assert (found["id"], found["external_id"]) == (str(ONE.id), "chat-7")
    first, cut, again = found["turns"]
    assert [each["number"] for each in found["turns"]] == [1, 2, 3]
    assert (first["parent"], cut["parent"], again["parent"]) == (None, 1, 1)
    assert (again["retry_of"], first["next_role"]) == (2, "user")
    # A turn that something follows is no longer held.
    assert (first["kind"], first["kind_rule"]) == ("main", "promoted_when_extended")
    assert first["why"] == {
        "session": "the client names the session; nothing in it is continued",
        "kind": "was held, and a later request extended it",
    }
    assert cut["why"]["session"] == (
        "in the session that the client names: a tool-call id that was minted here came back, "
        "which went on before: a branch"
    )
    assert cut["why"]["branch"].startswith("messages before the reply are not")
    assert cut["why"]["delivery"] == "the client left before the end"
    assert cut["why"]["reply"] == "it was given up: not scored as complete"
    assert again["why"]["reply"] == "a filter cut it: not scored as complete"
    assert again["why"]["retry"] == "a retry of 2"
    assert (first["next_how"], cut["next_how"], again["next_how"]) == (
        "continued",
        None,
        "rolled_back",
    )
    assert again["why"]["rollback"] == "its user went back behind it and said something else"
    assert "rollback" not in first["why"]


async def test_people_read_a_table(call: Call) -> None:
    text = await asyncio.to_thread(call, "chat-7")
    assert SECRET not in text
    for part in ("client's name: chat-7", "ambiguous", "retry: a retry of 2", "aborted", "1.00"):
        assert part in text


async def test_a_turn_of_another_session_goes_by_its_id(call: Call) -> None:
    [found] = json.loads(await asyncio.to_thread(call, str(OTHER.id), "--json"))
    [only] = found["turns"]
    assert (found["parent_session_id"], only["parent"]) == (str(ONE.id), str(STORED[0].id))
    # A rule that this build has no words for goes by its name.
    assert only["why"] == {"session": "of_a_later_build", "kind": "a sub-agent's call"}


async def test_a_session_that_is_none_is_said_so(call: Call) -> None:
    with pytest.raises(NotFound, match="there is no session 'nobody'"):
        await asyncio.to_thread(call, "nobody")
