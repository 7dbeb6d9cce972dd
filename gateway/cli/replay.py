"""`nextstate judge --replay SESSION` and `--since …`: old scores beside new ones, as a table."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rich.table import Table

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.local.config import LocalSettings
    from gateway.store.judged import JudgedTurn, JudgedTurns
    from judge.config import JudgeConfig
    from judge.replay import Replayed

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_UNIT_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which turns to judge again, and what to change of the judge for it."""

    session: UUID | None
    since: float | None
    limit: int
    model: str | None = None
    guidance: str | None = None


def wanted(
    session: str | None,
    since: str | None,
    *,
    limit: int,
    model: str | None,
    guidance: Path | None,
) -> Wanted | None:
    """The options of the command; None where a judge is to run instead.

    Raises ConfigError for one that cannot be read or has no use.
    """
    if session is None and since is None:
        if model is not None or guidance is not None:
            raise ConfigError("--model and --guidance are for --replay and --since; see judge.llm")
        return None
    if session is not None and since is not None:
        raise ConfigError("--replay SESSION and --since exclude one another")
    try:
        found = UUID(session) if session is not None else None
    except ValueError:
        raise ConfigError(f"--replay: {session!r} is not the id of a session") from None
    return Wanted(
        session=found,
        since=None if since is None else moment(since),
        limit=limit,
        model=model,
        guidance=guidance.read_text() if guidance else None,
    )


def moment(text: str, now: float | None = None) -> float:
    """Seconds since the epoch of `90min` (ago), `2h`, `3d`, or a date or time in ISO form (UTC).

    Raises ConfigError for anything else.
    """
    if ago := _AGO.fullmatch(text.strip()):
        return (time.time() if now is None else now) - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"--since: {text!r} is neither like 2h nor a date") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def adjusted(config: JudgeConfig, ask: Wanted) -> JudgeConfig:
    """The configured judges with another model or guidance. Raises ConfigError without an LLM."""
    changes = {
        name: value
        for name, value in (("model", ask.model), ("guidance", ask.guidance))
        if value is not None
    }
    if not changes:
        return config
    if config.llm is None:
        raise ConfigError("--model and --guidance need an LLM judge: configure judge.llm")
    return config.model_copy(update={"llm": config.llm.model_copy(update=changes)})


async def run(settings: LocalSettings, ask: Wanted) -> list[Replayed]:
    """Raises StoreError, StackError without a database, ConfigError."""
    from gateway.local.access import database_url, with_engines
    from gateway.store.database import Database
    from gateway.store.judged import JudgedTurns
    from judge.lineup import lined_up
    from judge.replay import replay

    config = adjusted(with_engines(settings).judging, ask)
    url = database_url(settings)
    database = await Database.open(settings.database, url, application="nextstate-replay")
    try:
        await database.check_revision(newest=True)
        turns = await _turns(JudgedTurns(database), ask)
    finally:
        await database.close()
    async with lined_up(config) as lineup:
        return await replay(turns, lineup.judges, config)


async def _turns(stored: JudgedTurns, ask: Wanted) -> list[JudgedTurn]:
    if ask.session is not None:
        return await stored.of_session(ask.session, ask.limit)
    return await stored.since(ask.since or 0.0, ask.limit)


def table(replayed: list[Replayed]) -> Table:
    """A row for each turn whose score changed or that could not be judged."""
    from judge.replay import shown

    found = Table("turn", "before", "by", "now", "by", "why")
    for one in replayed:
        before = (str(one.turn.turn_id), shown(one.turn.score), _by(one.turn.judge, one.turn.rule))
        if one.now is None:
            found.add_row(*before, "failed", "", one.error)
        elif one.changed:
            now = one.now
            found.add_row(*before, shown(now.score), _by(now.judge, now.rule), now.reason)
    return found


def summary(difference: dict[str, Any]) -> str:
    """The difference in a line or two."""
    lines = [
        "{turns} turns judged again: {same} the same, {changed} changed, {failed} failed".format(
            **difference
        )
    ]
    if difference["mean_before"] is not None:
        before, now = difference["mean_before"], difference["mean_now"]
        agreement = "" if difference["kappa"] is None else f", kappa {difference['kappa']:.2f}"
        lines.append(f"mean score {before:+.3f} before, {now:+.3f} now{agreement}")
    lines += [f"  {move}: {count}" for move, count in difference["from_to"].items()]
    return "\n".join(lines)


def _by(judge: str | None, rule: str | None) -> str:
    return f"{judge} ({rule})" if judge and rule else judge or ""
