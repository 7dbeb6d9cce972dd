"""What became of turns: next state, judgements, feedback, samples and verdict of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.store.database import seconds

Found = dict[str, Any]

_NEXT_STATES = f"""
SELECT turn_id, following_id, role, messages, {seconds("arrived_at")} AS arrived_at
FROM next_states WHERE turn_id = ANY($1::uuid[])
"""  # noqa: S608 - made of constants

_JUDGEMENTS = f"""
SELECT turn_id, round, state, attempts, judge, rule, score, confidence, reason, votes, hint,
    {seconds("done_at")} AS done_at
FROM judgements WHERE turn_id = ANY($1::uuid[]) ORDER BY turn_id, round
"""  # noqa: S608

_FEEDBACK = f"""
SELECT turn_id, id, score, text, source, {seconds("created_at")} AS created_at
FROM feedback WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at
"""  # noqa: S608

_SAMPLES = """
SELECT turn_id, id, method, score, weight, state, reason, step_id, version_lag
FROM samples WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at
"""

_VERDICTS = """
SELECT turn_id, outcome, reason, step_id, version FROM verdicts WHERE turn_id = ANY($1::uuid[])
"""


async def add_histories(connection: asyncpg.Connection, turns: Sequence[Found]) -> None:
    """Put `next_state`, `judgements`, `feedback`, `samples` and `verdict` into each turn."""
    ids = [turn["id"] for turn in turns]
    states = await _by_turn(connection, _NEXT_STATES, ids)
    judged = await _by_turn(connection, _JUDGEMENTS, ids)
    said = await _by_turn(connection, _FEEDBACK, ids)
    samples = await _by_turn(connection, _SAMPLES, ids)
    verdicts = await _by_turn(connection, _VERDICTS, ids)
    for turn in turns:
        key = turn["id"]
        turn["next_state"] = next(iter(states[key]), None)
        turn["judgements"] = judged[key]
        turn["feedback"] = said[key]
        turn["samples"] = samples[key]
        turn["verdict"] = next(iter(verdicts[key]), None)


def strip(turn: Found) -> None:
    """Take away what people, models and judges wrote."""
    del turn["messages"], turn["reply"]
    if turn["next_state"] is not None:
        del turn["next_state"]["messages"]
    for judgement in turn["judgements"]:
        del judgement["reason"], judgement["votes"], judgement["hint"]
    for said in turn["feedback"]:
        del said["text"]


async def _by_turn(
    connection: asyncpg.Connection, sql: str, turn_ids: list[UUID]
) -> defaultdict[UUID, list[Found]]:
    found: defaultdict[UUID, list[Found]] = defaultdict(list)
    for row in await connection.fetch(sql, turn_ids):
        values = dict(row)
        found[values.pop("turn_id")].append(values)
    return found
