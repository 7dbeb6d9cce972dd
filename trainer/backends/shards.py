"""Checkpoints in which every rank writes what it holds, and any number of ranks reads it again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

#: Its presence tells these checkpoints from plain files.
_METADATA = ".metadata"


def write(
    tensors: Mapping[str, Tensor], directory: Path, group: dist.ProcessGroup
) -> Callable[[], None]:
    """Copy the tensors aside and begin to write them; what waits for the end.

    Collective. What waits raises OSError on all ranks where one cannot write. `group` is used
    until then.
    """
    begun: Any = async_save(dict(tensors), checkpoint_id=str(directory), process_group=group)

    def wait() -> None:
        try:
            begun.result()
        except CheckpointException as error:
            raise OSError(f"{directory} cannot be written: {error}") from error

    return wait


def names(directory: Path) -> set[str] | None:
    """What a checkpoint holds; None where it is not one of these."""
    if not (directory / _METADATA).is_file():
        return None
    found: Any = FileSystemReader(str(directory)).read_metadata()
    return set(found.state_dict_metadata)


def read(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Read into the tensors in place, whatever the number of ranks that wrote them."""
    with warnings.catch_warnings():
        # One process alone is what is meant where no other was started.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(dict(tensors), checkpoint_id=str(directory), no_dist=not dist.is_initialized())
