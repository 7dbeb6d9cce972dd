"""Moments as the torch back end keeps those of one process, so that it can go on with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from trainer.backends.hf_files import store

Named = Iterable[tuple[str, Tensor]]


def write_plain(kinds: Iterable[tuple[str, Named]], steps: int, directory: Path | None) -> None:
    """Write what goes through `kinds` by Hugging Face names, or, without a directory, drop it.

    Whoever writes holds all of it at a time. `master` are weights in float32.
    """
    moments: dict[str, Tensor] = {}
    masters: dict[str, Tensor] = {}
    for kind, named in kinds:
        for name, value in named:
            if directory is None:
                continue
            if kind == "master":
                masters[name] = value.contiguous()
                continue
            moments[f"{kind}.{name}"] = value.contiguous()
            moments[f"step.{name}"] = torch.tensor(float(steps))
    if directory is None:
        return
    store(moments, directory / "optimizer.safetensors")
    if masters:
        store(masters, directory / "masters.safetensors")
    (directory / "optimizer.json").write_text(json.dumps({"steps": steps}))
