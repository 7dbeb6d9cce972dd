"""All users at once: each talks, again and again, in one of two arms, until the demo ends.

Both arms run side by side, so that whatever else changes (load, time) changes for both. A user
comes in only where there is room: more turns than the trainer takes would only grow stale while
they wait. Room = 2·batch - (turns whose next state is stored and that are not yet trained, dropped
or found unfit) - conversations that are still running.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI

from gateway.demo.users import Manner, Tally, User, converse

_LOOK_AGAIN_S = 0.1
_AFTER_FAILURE_S = 1.0


@dataclass(slots=True, kw_only=True)
class Pace:
    """How many conversations there is room for; `waiting` is told from outside."""

    batch: int
    waiting: int = 0
    running: int = 0

    @property
    def room(self) -> int:
        return 2 * self.batch - self.waiting - self.running


@dataclass(slots=True, kw_only=True)
class Turns:
    """Which arm one person talks in next: `share` control conversations to each trained one.

    Each person keeps to it, so that both arms hold the same people; `phase` in [0, 1) lets them
    come to the control at different times.
    """

    share: float
    phase: float = 0.0
    trained: int = 0
    control: int = 0

    def control_next(self) -> bool:
        return self.control + self.phase < self.share * self.trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """One person's two keys: the one whose turns are trained on, and the control's."""

    trained: AsyncOpenAI
    control: AsyncOpenAI


class Crowd:
    """`run` returns when `stop` is set and every conversation has come to its end."""

    def __init__(
        self,
        *,
        users: Sequence[User],
        clients: Mapping[str, Clients],
        questions: Sequence[str],
        manner: Manner,
        pace: Pace,
        control_share: float,
        seed: int,
    ) -> None:
        self._users = users
        self._clients = clients
        self._questions = questions
        self._manner = manner
        self._share = control_share
        self._seed = seed
        self.pace = pace
        self.tally = Tally()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for user in self._users:
                group.create_task(self._live(user))

    async def _live(self, user: User) -> None:
        rng = random.Random(f"{self._seed}/{user.name}")  # noqa: S311 - users, not secrets
        trained, control = _Deck(self._questions, rng), _Deck(self._questions, rng)
        turns = Turns(share=self._share, phase=rng.random())
        clients = self._clients[user.name]
        while not self.stop.is_set():
            if turns.control_next():
                turns.control += 1
                await self._talk(user, clients.control, control.draw(), rng)
            elif self.pace.room > 0:
                turns.trained += 1
                self.pace.running += 1
                try:
                    await self._talk(user, clients.trained, trained.draw(), rng)
                finally:
                    self.pace.running -= 1
            else:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _talk(
        self, user: User, client: AsyncOpenAI, question: str, rng: random.Random
    ) -> None:
        talk = converse(user, client, question, manner=self._manner, rng=rng, tally=self.tally)
        if not await talk:
            await asyncio.sleep(_AFTER_FAILURE_S)


class _Deck:
    """Every question once in a shuffled order, then again in another."""

    def __init__(self, questions: Sequence[str], rng: random.Random) -> None:
        self._questions = questions
        self._rng = rng
        self._left: list[str] = []

    def draw(self) -> str:
        if not self._left:
            self._left = self._rng.sample(self._questions, len(self._questions))
        return self._left.pop()
