"""An engine in this process that serves adapters from disk by transformers and peft.

It shares no code with the trainer's back end, so that the two agree only if the exported weights
are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from gateway.engine.base import EngineStatus, Take
from gateway.engine.chunks import weight_version
from gateway.engine.whole_weights import IN_DOUBT
from gateway.errors import EngineRejected, EngineUnavailable
from gateway.records import Chunk, Finish, FinishReason, Generation, PolicyRef, VersionSpan


class TorchEngine:
    """Set `dead`, `hang` or `offset` (nats added to every score) to make it misbehave."""

    def __init__(self, model: Path, name: str = "torch-0") -> None:
        self.name = name
        self._model = model
        self._base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.adapters: dict[str, Any] = {}
        self.dead = self.hang = False
        self.offset = 0.0
        self.unloaded: list[str] = []

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, Take | None]:
        await self._answer()
        temperature = request.sampling.temperature or 1.0
        ids, sampled, values = list(request.input_ids), [], []
        for _ in range(request.sampling.max_tokens or 8):
            log = self._log(ids, request.policy)[-1]
            log = torch.log_softmax(log / temperature, -1)
            token = int(torch.multinomial(log.exp(), 1))
            ids.append(token)
            sampled.append(token)
            values.append(float(log[token]))
            if token in request.stop_token_ids:
                break
        span = VersionSpan(request.policy.version, 0, len(sampled))
        stopped = sampled[-1] in request.stop_token_ids
        finish = Finish(reason=FinishReason.STOP if stopped else FinishReason.LENGTH, spans=(span,))
        yield Chunk(ids=tuple(sampled), logprobs=tuple(values), finish=finish)

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        await self._answer()
        log = self._log(ids[:-1], policy)
        return [float(log[at - 1, ids[at]]) + self.offset for at in range(start, len(ids))]

    async def load(self, policy: PolicyRef) -> float:
        await self._answer()
        if policy.adapter and policy.adapter not in self.adapters:
            if policy.uri is None or not (Path(policy.uri) / "adapter_config.json").is_file():
                raise EngineRejected("no such adapter", engine=self.name)
            base = AutoModelForCausalLM.from_pretrained(self._model, dtype=torch.float32)
            self.adapters[policy.adapter] = PeftModel.from_pretrained(base, policy.uri).eval()
        return 1.0

    async def unload(self, policy: PolicyRef) -> None:
        await self._answer()
        if self.adapters.pop(policy.adapter or "", None) is not None:
            self.unloaded.append(policy.adapter or "")

    async def restore(self, policy: PolicyRef) -> float:
        return await self.load(policy)

    async def resume(self) -> None:
        """It never waits."""

    async def checksum(self) -> str | None:
        return None

    async def status(self) -> EngineStatus:
        await self._answer()
        return EngineStatus(ready=True, adapters=frozenset(self.adapters), supports_lora=True)

    async def close(self) -> None:
        self.adapters.clear()

    async def _answer(self) -> None:
        if self.hang:
            await asyncio.sleep(3600)
        if self.dead:
            raise EngineUnavailable("cannot be reached", engine=self.name)

    @torch.no_grad()
    def _log(self, ids: Sequence[int], policy: PolicyRef) -> torch.Tensor:
        """Log-probabilities [len(ids), V] of what follows each id."""
        if policy.adapter is not None and policy.adapter not in self.adapters:
            raise EngineRejected(f"{policy.adapter} is not loaded", engine=self.name)
        model = self.adapters[policy.adapter] if policy.adapter else self._base
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0], -1)


class FullEngine(TorchEngine):
    """One whose weights are swapped in full, from directories that it remembers in `loaded`."""

    def __init__(self, model: Path, name: str = "torch-full") -> None:
        super().__init__(model, name)
        self.loaded: list[int] = []
        self.told = "default"

    async def load(self, policy: PolicyRef) -> float:
        await self._answer()
        if policy.version not in self.loaded[-1:]:
            return await self.restore(policy)
        return 1.0

    async def restore(self, policy: PolicyRef) -> float:
        await self._answer()
        assert policy.uri is not None
        self._base = AutoModelForCausalLM.from_pretrained(policy.uri, dtype=torch.float32).eval()
        self.loaded.append(policy.version)
        self.told = weight_version(policy)
        return 1.0

    async def disown(self) -> None:
        await self._answer()
        self.told = IN_DOUBT

    async def status(self) -> EngineStatus:
        await self._answer()
        return EngineStatus(ready=True, weight_version=self.told)

    async def unload(self, policy: PolicyRef) -> None:
        """The next version takes the place of this one."""
        await self._answer()
