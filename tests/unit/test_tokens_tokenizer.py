from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.tokens.tokenizer import Tokenizer
from tests.unit.chat_models import CHATML, write_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_facts_come_from_the_models_own_files(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.facts.vocab_size == 512
    assert tokenizer.facts.context_length == 2048
    assert tokenizer.facts.stop_token_ids == (2, 0)
    assert tokenizer.chat_template == CHATML
    assert tokenizer.special_tokens == {
        "eos_token": "<|im_end|>",
        "bos_token": "<|begin_of_text|>",
    }


def test_special_tokens_in_text_are_recognised_and_none_are_added(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    ids = tokenizer.encode("<|im_start|>user\n<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "<|im_start|>user\n<|im_end|>"
    assert tokenizer.decode(ids, skip=tokenizer.special_ids) == "user\n"
    assert tokenizer.encode("") == []


def test_ids_outside_the_models_vocabulary_are_found(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.first_invalid([]) is None
    assert tokenizer.first_invalid([0, 511]) is None
    assert tokenizer.first_invalid([3, 512, 513]) == 512
    assert tokenizer.first_invalid([3, -1]) == -1


def test_template_may_stand_in_the_tokenizers_settings(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    settings = {
        "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "y"}]
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer.load(directory).chat_template == "y"


def test_composite_models_keep_facts_in_text_config(directory: Path) -> None:
    content = {
        "model_type": "composite",
        "text_config": {"vocab_size": 600, "max_position_embeddings": 64, "eos_token_id": 2},
    }
    (directory / "config.json").write_text(json.dumps(content))
    facts = Tokenizer.load(directory).facts
    assert (facts.vocab_size, facts.context_length, facts.stop_token_ids) == (600, 64, (2,))


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "chat_template.jinja"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        Tokenizer.load(directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_malformed_file_is_named(directory: Path, name: str, content: str) -> None:
    (directory / name).write_text(content)
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        Tokenizer.load(directory)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"eos_token_id": 512}, "outside the vocabulary"),
    ],
)
def test_contradicting_facts_are_refused(
    tmp_path: Path, config: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Tokenizer.load(write_model(tmp_path, **config))


def test_a_model_that_never_ends_is_refused(directory: Path) -> None:
    (directory / "config.json").write_text(
        json.dumps({"vocab_size": 512, "max_position_embeddings": 8})
    )
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="never end"):
        Tokenizer.load(directory)
