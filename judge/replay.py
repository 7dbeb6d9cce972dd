"""Judge again what was judged before, and compare. Nothing that is stored changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import JudgeError
from gateway.records import Judgement
from gateway.store.judged import JudgedTurn
from judge.config import JudgeConfig
from judge.evaluate import evaluate
from judge.health import kappa, sign
from judge.verdicts import Evidence, Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One turn: its stored score, and what the judges in line say now, or why they could not."""

    turn: JudgedTurn
    now: Judgement | None
    error: str | None = None

    @property
    def changed(self) -> bool:
        return self.now is not None and self.now.score != self.turn.score


async def replay(
    turns: Sequence[JudgedTurn], judges: Sequence[Judge], config: JudgeConfig
) -> list[Replayed]:
    """In the order of `turns`, as many at once as a worker judges."""
    places = asyncio.Semaphore(config.concurrency)

    async def one(turn: JudgedTurn) -> Replayed:
        try:
            async with places, asyncio.timeout(config.attempt_timeout_s):
                return Replayed(turn=turn, now=await evaluate(judges, _evidence(turn)))
        except TimeoutError:
            return Replayed(turn=turn, now=None, error="no verdict in time")
        except JudgeError as error:
            return Replayed(turn=turn, now=None, error=error.message)
        except Exception as error:  # noqa: BLE001 - a rule or a plug-in may raise anything
            return Replayed(turn=turn, now=None, error=f"{type(error).__name__}: {error}")

    return list(await asyncio.gather(*(one(turn) for turn in turns)))


def difference(replayed: Sequence[Replayed]) -> dict[str, Any]:
    """`{"turns", "failed", "same", "changed", "from_to", "mean_before", "mean_now", "kappa"}`.

    `from_to` counts changes as `"-1 -> none"`; means are over the turns that have a score then and
    now, `kappa` over the signs of the same. None where there is no such turn.
    """
    done = [(one.turn.score, one.now.score) for one in replayed if one.now is not None]
    both = [(old, new) for old, new in done if old is not None and new is not None]
    moves = Counter(f"{shown(old)} -> {shown(new)}" for old, new in done if old != new)
    return {
        "turns": len(replayed),
        "failed": len(replayed) - len(done),
        "same": sum(old == new for old, new in done),
        "changed": moves.total(),
        "from_to": dict(moves.most_common()),
        "mean_before": _mean([old for old, _ in both]),
        "mean_now": _mean([new for _, new in both]),
        "kappa": kappa([(sign(old), sign(new)) for old, new in both]),
    }


def shown(score: float | None) -> str:
    return "none" if score is None else f"{score:g}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _evidence(turn: JudgedTurn) -> Evidence:
    return Evidence(
        request=turn.request,
        reply=turn.reply,
        next_state=turn.next_state,
        feedback=turn.feedback,
        finish_reason=turn.finish_reason,
        discarded=turn.how == "rolled_back",
    )
