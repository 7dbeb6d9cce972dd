"""The cases that every system goes through in every round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench import scripts
from bench.conversations import STEPS, Conversation, Speaker
from bench.figures import Run
from bench.load import Seen, Target, closed_loop
from bench.processes import cpu_us
from bench.systems import System
from bench.upstream import Upstream
from gateway.pipeline.serve import UNWATCHED
from gateway.tokens.tokenizer import Tokenizer

_CHAT, _GENERATE = "/v1/chat/completions", "/generate"
#: What follows a reply (a row written, a connection put back) counts as its cost.
_SETTLE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`conversations` of `turns` requests each, over `connections`.

    Agentic ones are opened first, which is not measured. `pace_s` lies between tokens.
    """

    name: str
    conversations: int
    connections: int
    tokens: int
    agentic: bool = False
    stream: bool = False
    pace_s: float = 0.0

    @property
    def turns(self) -> int:
        return STEPS if self.agentic else 1

    def warm_up(self) -> Case:
        """The same with few requests."""
        return replace(self, conversations=min(self.conversations, 4), pace_s=0.0)


def cases(*, quick: bool) -> list[Case]:
    """`quick` has fewer of everything, and the same shapes."""
    less = 4 if quick else 1
    return [
        Case(name="small", conversations=2400 // less, connections=8, tokens=8),
        Case(name="busy", conversations=2400 // less, connections=64, tokens=8),
        Case(name="serial", conversations=320 // less, connections=1, tokens=8),
        Case(name="agentic", conversations=32 // less, connections=4, tokens=200, agentic=True),
        Case(
            name="chunk",
            conversations=16,
            connections=8,
            tokens=200 // (2 if quick else 1),
            stream=True,
            pace_s=0.01,
        ),
        Case(
            name="first_token",
            conversations=16 // less,
            connections=4,
            tokens=24,
            agentic=True,
            stream=True,
            pace_s=0.01,
        ),
    ]


class Runner:
    """Runs cases against one upstream."""

    def __init__(self, upstream: Upstream, speaker: Speaker, tokenizer: Tokenizer) -> None:
        self._upstream, self._speaker, self._tokenizer = upstream, speaker, tokenizer

    async def status(self, model: Path) -> None:
        """Make the upstream an engine that serves this model."""
        replies = scripts.status(model, self._tokenizer.facts.vocab_size)
        for path, reply in replies.items():
            await self._upstream.says(path, [reply])

    async def prepare(self, case: Case) -> None:
        """Tell the upstream what to answer."""
        call = self._speaker.call() if case.agentic and not case.stream else None
        reply = scripts.compose(self._tokenizer, case.tokens, call)
        # What its client sees whole the gateway asks for in larger pieces.
        events = scripts.generate(reply, 1 if case.stream else UNWATCHED)
        await self._upstream.says(_GENERATE, events, case.pace_s)
        chat = scripts.chat_stream(reply) if case.stream else scripts.chat_whole(reply)
        await self._upstream.says(_CHAT, chat, case.pace_s)

    async def run(self, case: Case, system: System) -> Run:
        """Measure one case on one system. Raises LoadFailed."""
        conversations = await self._opened(case, system.target)
        await asyncio.sleep(_SETTLE_S)
        own, store = cpu_us(system.pid), self._store_cpu_us(system)
        seen = await closed_loop(system.target, conversations, case.connections, turns=case.turns)
        await asyncio.sleep(_SETTLE_S)
        return self._told(case, seen, cpu_us(system.pid) - own, self._store_cpu_us(system) - store)

    async def direct(self, case: Case) -> Run:
        """The same without a system between: what the upstream and the load themselves take."""
        target = Target(port=self._upstream.port)
        conversations = await self._opened(case, target)
        seen = await closed_loop(target, conversations, case.connections, turns=case.turns)
        return self._told(case, seen, 0.0, 0.0)

    async def _opened(self, case: Case, target: Target) -> list[Conversation]:
        made = self.conversations(case)
        if case.agentic:
            await closed_loop(target, made, case.connections, turns=1)
        return made

    def conversations(self, case: Case) -> list[Conversation]:
        """Fresh ones, none of them opened yet."""
        make: Callable[..., Conversation] = (
            self._speaker.agentic if case.agentic else self._speaker.small
        )
        return [make(max_tokens=case.tokens, stream=case.stream) for _ in range(case.conversations)]

    def _store_cpu_us(self, system: System) -> float:
        return 0.0 if system.store_pid is None else cpu_us(system.store_pid)

    def _told(self, case: Case, seen: Seen, own: float, store: float) -> Run:
        requests = len(seen.latencies_ms)
        return Run(
            requests=requests,
            tokens=requests * case.tokens,
            cpu_us=own,
            store_cpu_us=store,
            latencies_ms=seen.latencies_ms,
            first_ms=seen.first_ms,
        )
