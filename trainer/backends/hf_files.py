"""Weights in Hugging Face directories, read and written a tensor at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gateway.errors import ConfigError
from trainer.backends.sharding import local, rows

#: What is written anew, or is weights of another form; the rest of the model's files goes along.
_OWN = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
#: Bytes of weights in one file, as the hub's tools cut them.
_FILE_BYTES = 5 * 10**9


def stored_names(directory: Path) -> set[str]:
    """Names of the stored weights."""
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    return names


@torch.no_grad()
def fill(targets: Mapping[str, Tensor], directory: Path, pattern: str = "*.safetensors") -> None:
    """Copy stored tensors into `targets` by name; of sharded ones only what this rank holds.

    Raises ConfigError for one that is missing or of another shape.
    """
    missing = set(targets)
    for path in sorted(directory.glob(pattern)):
        with safe_open(path, framework="pt") as file:
            for name in missing & set(file.keys()):
                target, stored = targets[name], file.get_slice(name)
                if tuple(stored.get_shape()) != tuple(target.shape):
                    raise ConfigError(f"{directory}: {name} is of another shape")
                part = stored[rows(target)] if target.dim() else file.get_tensor(name)
                local(target).copy_(part)
                missing.discard(name)
    if missing:
        raise ConfigError(f"{directory} holds no {min(missing)}")


def store(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one safetensors file. Raises OSError, as on a full disk."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def write_weights(
    weights: Iterable[tuple[str, Tensor]], directory: Path, limit: int = _FILE_BYTES
) -> None:
    """Write safetensors files of at most `limit` bytes, with an index where there are several."""
    placed: dict[str, int] = {}
    part: dict[str, Tensor] = {}
    files = total = held = 0
    for name, weight in weights:
        if part and held + weight.nbytes > limit:
            store(part, directory / _part(files))
            files, part, held = files + 1, {}, 0
        part[name], placed[name] = weight.contiguous(), files
        held, total = held + weight.nbytes, total + weight.nbytes
    store(part, directory / _part(files))
    files += 1
    if files == 1:
        (directory / _part(0)).rename(directory / "model.safetensors")
        return
    names = [f"model-{at + 1:05}-of-{files:05}.safetensors" for at in range(files)]
    for at, final in enumerate(names):
        (directory / _part(at)).rename(directory / final)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: names[at] for name, at in placed.items()},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def copy_rest(model: Path, directory: Path) -> None:
    """Bring along what of a model's files is neither weights nor there already."""
    for path in sorted(model.iterdir()):
        mine = directory / path.name
        if path.is_file() and not path.name.endswith(_OWN) and not mine.exists():
            shutil.copyfile(path, mine)


def _part(number: int) -> str:
    return f"part-{number}.safetensors"
