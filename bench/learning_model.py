"""A policy that samples and scores in this process, as an engine would, given whole weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from gateway.records import Message


@dataclass(frozen=True, slots=True)
class Reply:
    """`ids` [R] and their `logprobs` [R] at the sampling temperature; `finished` by a stop id."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class Policy:
    """A causal model and its chat template. `load` gives it the weights of another version."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self.stop = int(self._tokenizer.eos_token_id)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        own = self._model.state_dict()
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return self._model.state_dict().items()

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return self.ids(text)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], limit: int, temperature: float, seed: int
    ) -> list[Reply]:
        """One reply a prompt, of at most `limit` tokens; at temperature 0 the likeliest.

        Each has draws of its own, and what has come to its end costs no more.
        """
        draws = [torch.Generator().manual_seed(seed + row) for row in range(len(prompts))]
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.stop)
        mask = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, width - len(prompt) :] = 1
        cache, place = DynamicCache(), (mask.cumsum(1) - 1).clamp(min=0)
        sampled: list[list[int]] = [[] for _ in prompts]
        logs: list[list[float]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))
        for _ in range(limit):
            logits = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            log = (logits / (temperature or 1.0)).log_softmax(-1)
            token = (
                log - _noise(log, [draws[row] for row in rows]) if temperature else log
            ).argmax(-1)
            picked = log.gather(-1, token[:, None])[:, 0].tolist()
            for row, one, value in zip(rows, token.tolist(), picked, strict=True):
                sampled[row].append(one)
                logs[row].append(value)
            left = (token != self.stop).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) < len(rows):
                cache.batch_select_indices(left)
                token, mask, place = token[left], mask[left], place[left]
                rows = [rows[at] for at in left.tolist()]
            ids = token[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            place = place[:, -1:] + 1
        return [
            Reply(tuple(row), tuple(log), row[-1] == self.stop)
            for row, log in zip(sampled, logs, strict=True)
        ]

    @torch.no_grad()
    def score(self, prompt: Sequence[int], reply: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities [R] of a reply at temperature 1."""
        ids = torch.tensor([[*prompt, *reply]])
        log = self._model(ids, logits_to_keep=len(reply) + 1).logits[0, :-1].log_softmax(-1)
        return tuple(log.gather(-1, torch.tensor(list(reply))[:, None])[:, 0].tolist())


def _noise(like: Tensor, draws: Sequence[torch.Generator]) -> Tensor:
    """Logarithms of exponential draws [n, V]: the largest log p - noise is a sample of p."""
    rows = zip(like, draws, strict=True)
    return torch.stack(
        [torch.empty_like(row).exponential_(generator=own) for row, own in rows]
    ).log()
