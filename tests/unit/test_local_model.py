"""Which directory the policy's base model is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigError, StackError
from gateway.local import model
from gateway.local.model import ensure_model


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither SmolLM2-135M-Instruct nor a Hugging Face"):
        ensure_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no tokenizer.json"):
        ensure_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert ensure_model(str(tmp_path)) == tmp_path


def test_the_default_is_found_where_it_was_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_CACHE", str(tmp_path))
    made = tmp_path / "models" / "SmolLM2-135M-Instruct-0.1.2"
    made.mkdir(parents=True)
    assert ensure_model() == made
    assert ensure_model("SmolLM2-135M-Instruct") == made


def test_a_failed_conversion_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_CACHE", str(tmp_path))
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"nothing")
    monkeypatch.setattr(model, "_gguf", lambda: gguf)
    monkeypatch.setattr(model.sys, "executable", "/bin/false")
    with pytest.raises(StackError, match="converting SmolLM2-135M-Instruct failed: no output"):
        ensure_model()
    assert not list((tmp_path / "models").glob("SmolLM2-135M-Instruct-0.1.2"))


def test_a_full_disk_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_CACHE", str(tmp_path))
    monkeypatch.setattr(model, "_CONVERTED_BYTES", 1 << 60)
    with pytest.raises(StackError, match="MB free; the model needs"):
        ensure_model()
