"""Weights by their Hugging Face names and as Megatron shares them out, both ways, bit by bit.

Megatron keeps query, key and value in one matrix, a group of heads after the other, and gate and
up in one. Of p processes each holds rows of one kind of matrix and columns of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.backends.megatron.architecture import Architecture

Kind = Literal["whole", "rows", "columns", "heads", "halves", "vocabulary"]


@dataclass(frozen=True, slots=True)
class Part:
    """A weight by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A weight of Megatron and what is stored in it."""

    name: str
    kind: Kind
    parts: tuple[Part, ...]


def slots(
    shape: Architecture, layers: Iterable[int], *, first: bool, last: bool, fused: bool
) -> Iterator[Slot]:
    """Weights of a stage that holds `layers`; in `fused` ones a norm lies in the next matrix."""
    h, d = shape.hidden, shape.head_dim
    q, kv = shape.heads * d, shape.groups * d
    vocabulary = (shape.vocab, h)
    if first:
        embedding = Part("model.embed_tokens.weight", vocabulary)
        yield Slot("embedding.word_embeddings.weight", "vocabulary", (embedding,))
    for own, layer in enumerate(layers):
        theirs, mine = f"model.layers.{layer}", f"decoder.layers.{own}"
        attention, heads = f"{theirs}.self_attn", f"{mine}.self_attention"
        three = tuple(zip("qkv", (q, kv, kv), strict=True))
        projections = tuple(Part(f"{attention}.{x}_proj.weight", (w, h)) for x, w in three)
        yield Slot(f"{heads}.linear_qkv.weight", "heads", projections)
        if shape.qkv_bias:
            biases = tuple(Part(f"{attention}.{x}_proj.bias", (w,)) for x, w in three)
            yield Slot(f"{heads}.linear_qkv.bias", "heads", biases)
        yield Slot(
            f"{heads}.linear_proj.weight", "columns", (Part(f"{attention}.o_proj.weight", (h, q)),)
        )
        if shape.qk_norm:
            for x in "qk":
                normed = Part(f"{attention}.{x}_norm.weight", (d,))
                yield Slot(f"{heads}.{x}_layernorm.weight", "whole", (normed,))
        before = f"{heads}.linear_qkv.layer_norm_" if fused else f"{mine}.input_layernorm."
        between = f"{mine}.mlp.linear_fc1.layer_norm_" if fused else f"{mine}.pre_mlp_layernorm."
        yield Slot(f"{before}weight", "whole", (Part(f"{theirs}.input_layernorm.weight", (h,)),))
        yield Slot(
            f"{between}weight", "whole", (Part(f"{theirs}.post_attention_layernorm.weight", (h,)),)
        )
        wide = tuple(
            Part(f"{theirs}.mlp.{x}_proj.weight", (shape.inner, h)) for x in ("gate", "up")
        )
        yield Slot(f"{mine}.mlp.linear_fc1.weight", "halves", wide)
        narrow = Part(f"{theirs}.mlp.down_proj.weight", (h, shape.inner))
        yield Slot(f"{mine}.mlp.linear_fc2.weight", "columns", (narrow,))
    if last:
        yield Slot("decoder.final_layernorm.weight", "whole", (Part("model.norm.weight", (h,)),))
        if not shape.tied:
            yield Slot("output_layer.weight", "vocabulary", (Part("lm_head.weight", vocabulary),))
        elif not first:
            # The last stage has a copy of the embedding of its own; it is stored once.
            again = Part("model.embed_tokens.weight", vocabulary)
            yield Slot("output_layer.weight", "vocabulary", (again,))


def split(kind: Kind, shape: Architecture, whole: Sequence[Tensor], rank: int, size: int) -> Tensor:
    """What process `rank` of `size` holds of the parts of a slot."""
    if kind == "whole":
        return whole[0]
    if kind == "columns":
        return whole[0].chunk(size, 1)[rank]
    if kind == "halves":
        return torch.cat([part.chunk(size)[rank] for part in whole])
    if kind == "heads":
        grouped = [part.view(shape.groups, -1, *part.shape[1:]) for part in whole]
        return torch.cat(grouped, 1).flatten(0, 1).chunk(size)[rank]
    (one,) = whole
    if kind == "vocabulary":
        missing = shape.padded_vocab(size) - len(one)
        one = torch.cat((one, one.new_zeros(missing, *one.shape[1:])))
    return one.chunk(size)[rank]


def join(kind: Kind, shape: Architecture, shards: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a slot from what all processes hold, in order."""
    if kind == "whole":
        return [shards[0]]
    if kind == "columns":
        return [torch.cat(list(shards), 1)]
    if kind == "halves":
        gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return [torch.cat(gates), torch.cat(ups)]
    one = torch.cat(list(shards))
    if kind == "heads":
        d = shape.head_dim
        grouped = one.view(shape.groups, -1, *one.shape[1:])
        widths = [shape.heads // shape.groups * d, d, d]
        return [part.flatten(0, 1) for part in torch.split(grouped, widths, 1)]
    return [one[: shape.vocab] if kind == "vocabulary" else one]
