from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, pre_tokenizers

from gateway.errors import ConfigError
from gateway.tokens.tokenizer import Tokenizer
from gateway.tokens.words import Words
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


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CL100K = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHARACTERS = (
    "abXY019 \n 's.,-_(\"\t\r\x0b\x1c\x00\x7f\u00e9\u6f22\u00a0\u3000\U0001f600\u0301\u00b2"
)


@pytest.mark.parametrize(
    "cutting",
    [
        GPT2,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
        pre_tokenizers.Sequence([pre_tokenizers.Split(CL100K, "isolated"), BYTES]),
    ],
)
def test_text_is_encoded_word_by_word_as_the_library_encodes_the_whole(
    directory: Path, cutting: pre_tokenizers.PreTokenizer
) -> None:
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.pre_tokenizer = cutting
    words = Words.of(library)
    assert words is not None
    chosen = random.Random(3)
    for length in range(1, 400):
        text = "".join(chosen.choices(CHARACTERS, k=length % 50 + 1))
        assert words.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_special_tokens_part_what_is_encoded_apart(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    specials = sorted(tokenizer.special_texts)
    chosen = random.Random(4)
    for _ in range(300):
        parts = chosen.choices(
            [*specials, "\n", " ", "user\n", "It's 12", "\u00e9 a", "<|im_"], k=7
        )
        text = "".join(parts)
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "cutting",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), GPT2]),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{Lu}+"), "isolated"), BYTES]),
    ],
)
def test_cutting_that_is_not_understood_is_left_to_the_library(
    directory: Path, cutting: pre_tokenizers.PreTokenizer
) -> None:
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.pre_tokenizer = cutting
    assert Words.of(library) is None
