"""From samples to micro-batches.

Turns of one chain share a sequence: one forward pass for all of a session, the same gradients.
Sequences share a row where the model can keep them apart by their positions; the rest of a row is
padding, on the right, where a causal model never looks back from. Sampled tokens are addressed by
their place in the flattened hidden states, so that logits are only ever made where one was sampled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gateway.errors import TrainerError
from gateway.records import TrainingSample
from trainer.chains import chains
from trainer.lessons import Teacher, misfit
from trainer.micro_batch import MicroBatch, PackedBatch
from trainer.rows import fill, group_by_length


def defect(sample: TrainingSample, *, vocab: int, max_tokens: int) -> str | None:
    """Why a sample cannot be trained on as it is stored, or None.

    An id outside the vocabulary would read another row's embedding or kill the process; a
    log-probability above 0 or not finite is not one.
    """
    ids = (*sample.prompt_ids, *sample.sampled_ids)
    if not len(sample.prompt_ids) or not len(sample.sampled_ids):
        return "no_tokens"
    if len(sample.sampled_ids) != len(sample.logprobs):
        return "length_mismatch"
    if len(ids) > max_tokens:
        return "too_long"
    if min(ids) < 0 or max(ids) >= vocab:
        return "id_outside_vocabulary"
    if not all(math.isfinite(value) and value <= 1e-3 for value in sample.logprobs):
        return "logprob_not_finite"
    if not sample.temperature > 0:
        return "temperature_zero"
    if sample.kept is not None and (reason := _truncation(sample, sample.kept, vocab)):
        return reason
    return (
        None if sample.teaching is None else misfit(sample.teaching, len(sample.sampled_ids), vocab)
    )


def _truncation(sample: TrainingSample, kept: Sequence[Sequence[int]], vocab: int) -> str | None:
    """Why the sets that tokens were sampled from cannot be theirs, or None."""
    if len(kept) != len(sample.sampled_ids):
        return "kept_set_mismatch"
    if not all(token in row for token, row in zip(sample.sampled_ids, kept, strict=True)):
        return "kept_set_mismatch"
    if min(map(min, kept)) < 0 or max(map(max, kept)) >= vocab:
        return "id_outside_vocabulary"
    return None


def pack(
    samples: Sequence[TrainingSample],
    advantages: Sequence[Sequence[float]],
    *,
    vocab: int,
    budget: int,
    version: int = 0,
    first: int = 0,
    taught: Sequence[float] | None = None,
    top_k: bool = False,
    shared: bool = False,
) -> PackedBatch:
    """Pack samples with their token advantages ([R] each) into micro-batches.

    At most `budget` tokens a micro-batch, padding included, except that one sequence always fits.
    With `shared` a row may hold several, each with positions of its own. `version` is the one that
    the step starts from, `first` the index of the first sample, `taught` what the teacher of each
    sample counts, `top_k` whether over all tokens that it named. Raises TrainerError on a sample
    that `defect` would have refused.
    """
    for sample, gains in zip(samples, advantages, strict=True):
        reason = defect(sample, vocab=vocab, max_tokens=2**31)
        if reason or len(gains) != len(sample.sampled_ids):
            raise TrainerError(f"sample {sample.id} cannot be packed: {reason or 'advantages'}")
    sequences = chains(samples)
    lessons = None if taught is None else Teacher.of(samples, taught, top_k=top_k)
    lengths = [_length(samples[sequence[-1]]) for sequence in sequences]
    alone = ([[index] for index in group] for group in group_by_length(lengths, budget))
    micro = []
    for rows in fill(lengths, budget) if shared else alone:
        turns = [
            [
                [_Turn(i + first, samples[i], advantages[i]) for i in sequences[index]]
                for index in row
            ]
            for row in rows
        ]
        one = _micro(turns, version)
        if lessons is not None:
            told = lessons.of_turns([i for row in rows for index in row for i in sequences[index]])
            one = replace(one, lesson=told)
        micro.append(one)
    return PackedBatch(tuple(micro), len(samples))


def minibatches(
    samples: Sequence[TrainingSample],
    advantages: Sequence[Sequence[float]],
    count: int,
    *,
    vocab: int,
    budget: int,
    version: int = 0,
    taught: Sequence[float] | None = None,
    top_k: bool = False,
    shared: bool = False,
) -> tuple[PackedBatch, ...]:
    """The same in at most `count` batches of nearly equal numbers of samples, in order."""
    total = len(samples)
    count = min(count, total)
    edges = [total * place // count for place in range(count + 1)]
    return tuple(
        pack(
            samples[low:high],
            advantages[low:high],
            vocab=vocab,
            budget=budget,
            version=version,
            first=low,
            taught=None if taught is None else taught[low:high],
            top_k=top_k,
            shared=shared,
        )
        for low, high in itertools.pairwise(edges)
    )


def _length(sample: TrainingSample) -> int:
    # The last sampled token predicts nothing that is trained.
    return len(sample.prompt_ids) + len(sample.sampled_ids) - 1


@dataclass(frozen=True, slots=True)
class _Turn:
    index: int
    sample: TrainingSample
    advantages: Sequence[float]


def _micro(rows: Sequence[Sequence[Sequence[_Turn]]], version: int) -> MicroBatch:
    """Each row sequences end to end, each of them the turns of a chain, the longest last."""
    width = max(sum(_length(chain[-1].sample) for chain in row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    positions = torch.arange(width).repeat(len(rows), 1)
    places: list[int] = []
    targets: list[int] = []
    behaviour: list[float] = []
    gains: list[float] = []
    temperature: list[float] = []
    lags: list[int] = []
    owners: list[int] = []
    for number, start, chain in _placed(rows):
        longest = chain[-1].sample
        whole = [*longest.prompt_ids, *longest.sampled_ids][:-1]
        ids[number, start : start + len(whole)] = torch.tensor(whole)
        # What follows in the row, padding too, counts from here on, until a sequence begins anew.
        positions[number, start:] = torch.arange(width - start)
        for turn in chain:
            first = number * width + start + len(turn.sample.prompt_ids) - 1
            count = len(turn.sample.sampled_ids)
            places.extend(range(first, first + count))
            targets.extend(turn.sample.sampled_ids)
            behaviour.extend(turn.sample.logprobs)
            gains.extend(turn.advantages)
            temperature.extend([turn.sample.temperature] * count)
            lags.extend(_lags(turn.sample, version))
            owners.extend([turn.index] * count)
    return MicroBatch(
        ids=ids,
        places=torch.tensor(places),
        targets=torch.tensor(targets),
        behaviour=torch.tensor(behaviour, dtype=torch.float32),
        advantages=torch.tensor(gains, dtype=torch.float32),
        temperature=torch.tensor(temperature, dtype=torch.float32),
        lags=torch.tensor(lags, dtype=torch.float32),
        samples=torch.tensor(owners),
        kept=_kept([turn.sample for row in rows for chain in row for turn in chain]),
        positions=positions if any(len(row) > 1 for row in rows) else None,
    )


def _placed(
    rows: Sequence[Sequence[Sequence[_Turn]]],
) -> Iterator[tuple[int, int, Sequence[_Turn]]]:
    """The row and the place in it at which each chain begins."""
    for number, row in enumerate(rows):
        start = 0
        for chain in row:
            yield number, start, chain
            start += _length(chain[-1].sample)


def _kept(samples: Sequence[TrainingSample]) -> torch.Tensor | None:
    """[N, M] of the tokens end to end; None where no sample was truncated."""
    widest = max((len(row) for sample in samples for row in sample.kept or ()), default=0)
    if not widest:
        return None
    rows = [
        row
        for sample in samples
        for row in (((),) * len(sample.sampled_ids) if sample.kept is None else sample.kept)
    ]
    found = torch.full((len(rows), widest), -1, dtype=torch.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = torch.tensor(list(row), dtype=torch.int64)
    return found


def _lags(sample: TrainingSample, version: int) -> list[int]:
    """Versions between the policy that sampled each token and `version`."""
    lags = [0] * len(sample.sampled_ids)
    for span in sample.spans:
        for place in range(span.start, min(span.end, len(lags))):
            lags[place] = max(0, version - span.version)
    return lags
