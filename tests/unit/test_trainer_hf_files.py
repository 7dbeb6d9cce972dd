"""Weights in Hugging Face directories: what is written in parts is read by whoever reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gateway.errors import ConfigError
from tests.tiny_llama import make_llama
from trainer.backends.hf_files import copy_rest, fill, store, stored_names, write_weights


def test_large_weights_are_written_in_parts(tmp_path: Path) -> None:
    model, out = make_llama(tmp_path / "model"), tmp_path / "out"
    out.mkdir()
    stored = load_file(model / "model.safetensors")
    limit = 3 * max(weight.nbytes for weight in stored.values())
    write_weights(iter(stored.items()), out, limit)
    copy_rest(model, out)
    parts = sorted(out.glob("*.safetensors"))
    count = len(parts)
    assert count > 1
    assert [part.name for part in parts] == [
        f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)
    ]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in stored.values())
    for part in parts:
        held = load_file(part)
        assert sum(weight.nbytes for weight in held.values()) <= limit
        assert {index["weight_map"][name] for name in held} == {part.name}
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
    assert stored_names(out) == {*stored}
    assert all(torch.equal(again[name], weight) for name, weight in stored.items())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_weights([("a", torch.ones(2, 3)), ("b", torch.tensor(4.0))], tmp_path)
    found = {"a": torch.zeros(2, 3), "b": torch.zeros(())}
    fill(found, tmp_path)
    assert found["a"].sum() == 6
    assert found["b"] == 4
    with pytest.raises(ConfigError, match="a is of another shape"):
        fill({"a": torch.zeros(3, 2)}, tmp_path)
    with pytest.raises(ConfigError, match="holds no c"):
        fill({"c": torch.zeros(1)}, tmp_path)


def test_what_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    """As a full disk is, which the trainer waits out."""
    with pytest.raises(OSError, match=r"nowhere/a\.safetensors cannot be written"):
        store({"a": torch.ones(1)}, tmp_path / "nowhere" / "a.safetensors")
