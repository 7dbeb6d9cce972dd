"""What must hold of every trainable row is held by the database itself, whoever writes it."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from gateway.config import DatabaseSettings
from gateway.store.database import Database
from gateway.store.writer import TurnWriter
from tests.factories import session, turn

#: Of a turn with 3 prompt ids after 7 shared ones and 4 sampled: what breaks it, and the check.
BROKEN = {
    "prompt_len = prompt_len + 1": "prompt_ids_length",
    "shared_len = shared_len - 1": "prompt_ids_length",
    "prompt_ids = prompt_ids || '\\x01'": "prompt_ids_length",
    "shared_len = -3, prompt_len = 0": "shared_is_a_prefix",
    "completion_len = 5": "sampled_ids_length",
    "sampled_ids = substring(sampled_ids FROM 1 FOR 12)": "sampled_ids_length",
    "logprobs = substring(logprobs FROM 1 FOR 12)": "trainable_has_logprobs",
    "logprobs = ''": "trainable_has_logprobs",
    "spans = '[]'": "trainable_has_tokens",
    "spans = '[[3, 0, 2]]'": "trainable_has_tokens",
    "spans = '[[3, 0, 5]]'": "trainable_has_tokens",
    "version_min = NULL": "trainable_has_tokens",
    "sampled_ids = '', logprobs = '', completion_len = 0, spans = '[[3, 0, 0]]'": (
        "trainable_has_tokens"
    ),
    "untrainable_reason = 'x'": "untrainable_says_why",
    "trainable = false": "untrainable_says_why",
    "chain_hash = '\\x00'": "chain_hash_is_sha256",
}


async def test_no_row_breaks_an_invariant(database_url: str, tmp_path: Path) -> None:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    try:
        one = session()
        root = turn(one)
        child = turn(one, root)
        await writer.commit(one, root, child)
    finally:
        await writer.close()
    for change, name in BROKEN.items():
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await database.execute(f"UPDATE turns SET {change} WHERE id = $1", child.id)
        assert (change, caught.value.constraint_name) == (change, name)
    # What cannot be trained on may lack its log-probabilities, and says so.
    await database.execute(
        "UPDATE turns SET trainable = false, untrainable_reason = 'x', logprobs = '' WHERE id = $1",
        child.id,
    )
    await database.close()
