"""Gateways, clients, a judge and a trainer in virtual time, around the real admission.

Real are `Admitter` (one for each gateway), `freshness` and the trainer's `schedule`. Postgres is
one set of counts that a gateway reads as late as its refresh allows.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from gateway.config import FreshnessSettings
from gateway.errors import TooManyRequests
from gateway.freshness import Load
from gateway.pipeline.admission import Admitter
from gateway.records import SampleHead
from gateway.store.admission import Counts
from trainer.schedule import choose, lag

LINEAGE = UUID(int=1)
Waits = Generator[float, None, None]

#: How often it is looked whether there is a place for those who wait.
LOOK_S = 0.1


@dataclass(kw_only=True)
class Turn:
    number: int
    gateway: int
    version: int
    state: str = "sampling"  # then answered, idle, queued, ready, leased, gone
    arrived_at: float = math.inf

    def head(self) -> SampleHead:
        own = UUID(int=self.number)
        return SampleHead(
            id=own,
            turn_id=own,
            session_id=own,
            score=1.0,
            version_min=self.version,
            arrived_at=self.arrived_at,
        )


@dataclass(kw_only=True)
class Findings:
    """What the run shows. `waits` are pairs of seconds told and seconds waited.

    Those are a client's from its first refusal until it was let in. `every` has such a pair for
    each refusal. As a client comes no earlier than told, none of these can show that it was told
    too long a time; `places` can: there the wait ends when there was room for all that were told
    to come before it, and for it.
    """

    arrivals: int = 0
    refused: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    unscored: int = 0
    steps: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    every: list[tuple[float, float]] = field(default_factory=list)
    places: list[tuple[float, float]] = field(default_factory=list)
    capacity_when_refused: Counter[int] = field(default_factory=Counter)
    left_before_refusal: int = 0
    wrong: list[str] = field(default_factory=list)
    overshoot: Counter[int] = field(default_factory=Counter)
    longest_told: float = 0.0
    trainer_idle_s: float = 0.0
    piled_up: int = 0
    cut: int = 0
    opened: list[float] = field(default_factory=list)
    ended_at: float = 0.0


def off(waits: list[tuple[float, float]]) -> list[float]:
    """How far what was told is from the wait, as a share of the wait, in order."""
    return sorted(abs(told - waited) / waited for told, waited in waits)


@dataclass(kw_only=True)
class Refused:
    """A client on its way back: when it is to come, and its refusals before it had a place."""

    due: float
    asked: list[tuple[float, float]] = field(default_factory=list)


class World:
    """One lineage. `clients` open one session after the other, `chats` never close theirs.

    A client that was turned away comes back when it was told to. The trainer is `away` between two
    times, in seconds; when it is back it keeps the newest of what has come meanwhile.
    """

    def __init__(
        self,
        *,
        seed: int,
        gateways: int = 4,
        clients: int = 64,
        chats: int = 8,
        step_s: float = 6.0,
        away: tuple[float, float] | None = None,
        settings: FreshnessSettings | None = None,
    ) -> None:
        self.settings = settings or FreshnessSettings(max_lag=4, batch=16)
        self.rng = random.Random(seed)
        self.now = 0.0
        self.found = Findings()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._turns: dict[int, Turn] = {}
        self._live = 0
        self._step_s, self._away = step_s, away
        self._ends: deque[float] = deque(maxlen=8)
        self._sizes: deque[int] = deque(maxlen=8)
        self._gateways = [Admitter(self.settings, lambda: self.now) for _ in range(gateways)]
        for gateway, admitter in enumerate(self._gateways):
            admitter.want = lambda gateway=gateway: self._spawn(self._refresh(gateway), 0.05)
        self._told = [0] * gateways
        self._room = [0] * gateways
        self._reading = [False] * gateways
        self._began: dict[int, deque[float]] = defaultdict(deque)
        self._ended: dict[int, deque[float]] = defaultdict(deque)
        self._left: deque[float] = deque()
        self._versions: deque[float] = deque()
        self._revived: deque[float] = deque()
        self._line: list[Refused] = []
        self._goal = 0
        for gateway in range(gateways):
            self._spawn(self._refreshes(gateway))
        for _ in range(clients):
            self._spawn(self._client())
        for _ in range(chats):
            self._spawn(self._chat())
        self._spawn(self._trainer())
        self._spawn(self._places())

    def run(self, arrivals: int) -> Findings:
        """Until so many requests that open a session of a `reject` key have come."""
        self._goal = arrivals
        while self.found.arrivals < arrivals:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.found.ended_at = self.now
        return self.found

    def truth(self) -> int:
        """The capacity as it really is at this moment."""
        return Load(
            max_lag=self._max_lag,
            batch=self.settings.batch,
            full_batch=self.settings.batch,
            backlog=self._behind("queued", "ready", "leased"),
            running=self._running(),
        ).capacity

    def _spawn(self, work: Waits, delay: float = 0.0) -> None:
        def go() -> None:
            for wait in work:
                self._at(self.now + wait, go)
                return

        self._at(self.now + delay, go)

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    # The counts

    def _behind(self, *states: str) -> Counter[int]:
        """Turns of some states that are not too stale, by their lag."""
        lags = Counter(
            self._live - turn.version for turn in self._turns.values() if turn.state in states
        )
        return Counter({lag: n for lag, n in lags.items() if lag <= self._max_lag})

    def _running(self) -> int:
        return sum(turn.state in ("sampling", "answered") for turn in self._turns.values())

    @property
    def _max_lag(self) -> int:
        return self.settings.max_lag

    def _counts(self, gateway: int) -> Counts:
        ends = list(self._ends)
        gaps = sorted(later - earlier for earlier, later in pairwise(ends))
        return Counts(
            live=not self._is_away(),
            backlog=self._behind("queued", "ready", "leased"),
            waiting=sum(turn.state == "answered" for turn in self._turns.values()),
            elsewhere=sum(self._told) - self._told[gateway],
            replicas=len(self._gateways),
            batch=sum(self._sizes) / len(self._sizes) if self._sizes else None,
            full_batch=self.settings.batch,
            step_s=gaps[len(gaps) // 2] if gaps else None,
            since_s=self.now - ends[-1] if ends else None,
        )

    def _refreshes(self, gateway: int) -> Waits:
        yield self.rng.uniform(0, self.settings.refresh_s / 2)
        while True:
            yield from self._refresh(gateway)
            yield self.settings.refresh_s / 2

    def _refresh(self, gateway: int) -> Waits:
        if self._reading[gateway]:
            return
        self._reading[gateway] = True
        admitter, at = self._gateways[gateway], self.now
        running = admitter.reading()
        yield self.rng.uniform(0.001, 0.01)
        self._told[gateway] = running.get(LINEAGE, 0)
        counts = self._counts(gateway)
        yield self.rng.uniform(0.001, 0.01)
        admitter.learn({LINEAGE: counts}, at)
        load = admitter.load(LINEAGE)
        self._room[gateway] = 0 if load is None else max(0, load.capacity)
        self._reading[gateway] = False

    # The clients

    def _client(self) -> Waits:
        yield self.rng.uniform(0, 30)
        while True:
            asked: list[tuple[float, float]] = []
            place = Refused(due=self.now)
            while True:
                gateway = self.rng.randrange(len(self._gateways))
                told = self._ask(gateway)
                if told is None:
                    break
                if not asked:
                    self._line.append(place)
                asked.append((self.now, told))
                place.asked.append((self.now, told))
                place.due = self.now + told
                yield told + self.rng.uniform(0, 0.1)
            if asked:
                self._line.remove(place)
                self._has_place(place)
                self.found.every += [(told, self.now - at) for at, told in asked]
                self.found.waits.append(self.found.every[-len(asked)])
            yield from self._session(gateway, self.rng.choice((1, 1, 2, 3)))

    def _places(self) -> Waits:
        """Give places to those who wait, in the order in which they were told to come."""
        while True:
            yield LOOK_S
            if self._line and (room := self.truth()) > 0:
                for place in heapq.nsmallest(room, self._line, key=lambda one: one.due):
                    self._has_place(place)

    def _has_place(self, place: Refused) -> None:
        self.found.places += [(told, max(LOOK_S, self.now - at)) for at, told in place.asked]
        place.asked.clear()

    def _ask(self, gateway: int) -> float | None:
        """Seconds after which to come back, or None where a session may be opened."""
        found, admitter = self.found, self._gateways[gateway]
        found.arrivals += 1
        true = self.truth()
        load = admitter.load(LINEAGE)
        if load is not None:
            self._check(gateway, true, load.capacity)
        try:
            admitter.admit(LINEAGE, opens=True, rejects=True)
        except TooManyRequests as error:
            found.refused += 1
            found.capacity_when_refused[true] += 1
            self._check_refusal(gateway, true)
            found.longest_told = max(found.longest_told, error.retry_after_s)
            return error.retry_after_s
        found.opened.append(self.now)
        self._room[gateway] -= 1
        if load is not None:
            found.overshoot[max(0, 1 - true)] += 1
        return None

    def _check(self, gateway: int, true: int, known: int) -> None:
        """What a gateway believes is off by no more than what happened within a refresh."""
        since = self.now - self.settings.refresh_s - 0.05
        begun = sum(_since(self._began[g], since) for g in self._others(gateway))
        ended = sum(_since(times, since) for times in self._ended.values())
        versions = _since(self._versions, since) * self.settings.batch
        left, revived = _since(self._left, since) + versions, _since(self._revived, since)
        if not true - left - ended <= known <= true + begun + revived:
            self.found.wrong.append(
                f"at {self.now:.3f}: known {known}, true {true}, begun {begun}, ended {ended}, "
                f"left {left}, revived {revived}"
            )

    def _check_refusal(self, gateway: int, true: int) -> None:
        """Room that is there is the others' share of what was read, or has come since."""
        since = self.now - self.settings.refresh_s - 0.05
        ended = sum(_since(times, since) for times in self._ended.values())
        come = _since(self._left, since) + _since(self._versions, since) * self.settings.batch
        if true > max(0, self._room[gateway]) + ended + come:
            self.found.wrong.append(
                f"at {self.now:.3f}: turned away with room for {true}, of which "
                f"{self._room[gateway]} were read, {ended} ended, {come} left"
            )

    def _others(self, gateway: int) -> list[int]:
        return [other for other in range(len(self._gateways)) if other != gateway]

    def _session(self, gateway: int, turns: int) -> Waits:
        before: Turn | None = None
        for _ in range(turns):
            if before is not None:
                self._follow(before)
            before = yield from self._turn(gateway)
            yield self.rng.uniform(0.2, 3.0)
            gateway = self.rng.randrange(len(self._gateways))
        assert before is not None
        if self.rng.random() < 0.8:
            self._follow(before)

    def _chat(self) -> Waits:
        """A person, whose key is served whatever waits: he answers late, or never."""
        before: Turn | None = None
        while True:
            yield self.rng.expovariate(1 / 120)
            if before is not None and self.rng.random() < 0.9:
                self._follow(before)
            gateway = self.rng.randrange(len(self._gateways))
            # Never turned away: this would raise.
            self._gateways[gateway].admit(LINEAGE, opens=before is None, rejects=False)
            before = yield from self._turn(gateway)

    def _turn(self, gateway: int) -> Generator[float, None, Turn]:
        self._number += 1
        turn = Turn(number=self._number, gateway=gateway, version=self._live)
        self._turns[turn.number] = turn
        self._began[gateway].append(self.now)
        with self._gateways[gateway].sampling(LINEAGE, 1):
            yield self.rng.lognormvariate(0.5, 0.5)
            turn.state = "answered"
        self._ended[gateway].append(self.now)
        self._at(self.now + self.settings.idle_s, lambda: self._idle(turn))
        return turn

    def _idle(self, turn: Turn) -> None:
        if turn.state == "answered":
            turn.state = "idle"
            del self._turns[turn.number]
            self._left.append(self.now)

    def _follow(self, turn: Turn) -> None:
        if turn.state == "idle":
            self._turns[turn.number] = turn
            self._revived.append(self.now)
        turn.state, turn.arrived_at = "queued", self.now
        slow = self.rng.random() < 0.1
        judging = self.rng.uniform(3, 8) if slow else self.rng.uniform(0.2, 1.5)
        self._at(self.now + judging, lambda: self._judged(turn))

    def _judged(self, turn: Turn) -> None:
        if turn.state != "queued":
            return
        if self.rng.random() < 0.2:
            self.found.unscored += 1
            self._gone(turn)
        else:
            turn.state = "ready"

    def _gone(self, turn: Turn) -> None:
        turn.state = "gone"
        del self._turns[turn.number]
        self._left.append(self.now)

    # The trainer

    def _is_away(self) -> bool:
        return self._away is not None and self._away[0] <= self.now < self._away[1]

    def _cut(self) -> None:
        """As `store.backlog` does it."""
        line = [turn for turn in self._turns.values() if turn.state in ("queued", "ready")]
        line.sort(key=lambda turn: turn.arrived_at)
        self.found.piled_up = len(line)
        for turn in line[: -(self._max_lag + 1) * self.settings.batch]:
            self.found.cut += 1
            self._gone(turn)

    def _trainer(self) -> Waits:
        settings, batch = self.settings, self.settings.batch
        window = min(2 * batch, (settings.max_lag + 1) * batch - 1)
        while True:
            if self._is_away():
                assert self._away is not None
                yield self._away[1] - self.now
                self._cut()
            ready = {UUID(int=t.number): t for t in self._turns.values() if t.state == "ready"}
            fresh = [
                turn.arrived_at
                for turn in self._turns.values()
                if turn.state == "queued" and self._live - turn.version <= settings.max_lag
            ]
            choice = choose(
                [turn.head() for turn in ready.values()],
                live_version=self._live,
                max_lag=settings.max_lag,
                batch=batch,
                window=window,
                min_batch=4,
                overdue_before=self.now - 900,
                waiting=sorted(fresh)[:window],
            )
            for head in choice.dropped:
                self.found.dropped += 1
                self._gone(ready[head.id])
            if not choice.due:
                self.found.trainer_idle_s += 0.05
                yield 0.05
                continue
            chosen = [ready[head.id] for head in choice.chosen]
            for turn in chosen:
                turn.state = "leased"
            self.found.lags.update(lag(head, self._live) for head in choice.chosen)
            yield self._step_s * self.rng.uniform(0.95, 1.05)
            for turn in chosen:
                self._gone(turn)
            self.found.steps += 1
            self._ends.append(self.now)
            self._sizes.append(len(chosen))
            for gateway in range(len(self._gateways)):
                self._spawn(self._refresh(gateway), self.rng.uniform(0.001, 0.02))
            yield 0.2
            self._live += 1
            self._versions.append(self.now)
            for turn in self._turns.values():
                if self._live - turn.version == self._max_lag + 1:
                    self._left.append(self.now)


def _since(times: deque[float], start: float) -> int:
    while times and times[0] < start:
        times.popleft()
    return len(times)
