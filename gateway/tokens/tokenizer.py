"""A model's tokenizer, read from a Hugging Face directory with the `tokenizers` library alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from gateway.errors import ConfigError
from gateway.records import first_outside, text_config
from gateway.tokens.ends import reply_ends
from gateway.tokens.formats import CallFormat, format_of
from gateway.tokens.token_bytes import TokenBytes
from gateway.tokens.words import Words

_ENCODERS = {
    "image": {"vision_config", "image_processor_type", "image_processor"},
    "audio": {"audio_config", "feature_extractor_type", "feature_extractor"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the model's own files say of it.

    `vocab_size` is that of the model's embedding (`config.json`), which may be larger or smaller
    than the tokenizer's: an id at or beyond it crashes an engine. `stop_token_ids` are the ids
    that end a reply. `modalities` are what it takes beside text: `image`, `audio`.
    """

    model_type: str
    vocab_size: int
    context_length: int
    stop_token_ids: tuple[int, ...]
    modalities: tuple[str, ...] = ()


class Tokenizer:
    """Text to ids and back, with the model's chat template and facts beside it.

    `special_tokens` maps names that templates use (`bos_token`, `eos_token`, …) to their text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        facts: ModelFacts,
        chat_template: str,
        special_tokens: Mapping[str, str],
    ) -> None:
        self._backend = backend
        self.facts = facts
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.special_texts = frozenset(token.content for token in added.values() if token.special)
        decoder = json.loads(backend.to_str())["decoder"]
        #: Ids map to bytes one by one, so text can be put together without decoding windows.
        self.is_byte_level = decoder is not None and decoder["type"] == "ByteLevel"
        #: The bytes that one id of a byte-level vocabulary stands for; none outside it.
        self.bytes_of = TokenBytes(self.token_of).__getitem__
        self._hidden: dict[tuple[str, ...], frozenset[int]] = {}
        self._words = Words.of(backend) if self.is_byte_level else None
        self._parted = _parted(added) if self._words else None
        self._added = {token.content: id_ for id_, token in added.items()}

    @cached_property
    def calls(self) -> CallFormat:
        """How the model writes tool calls."""
        return format_of(self.chat_template)

    @cached_property
    def thinks(self) -> bool:
        """Whether the chat template knows of reasoning."""
        return self.calls.thought.sign in self.chat_template

    @cached_property
    def answers_plainly(self) -> bool:
        """Whether a reply is what it says and no more where no tool may be called."""
        return not self.thinks and self.calls.untooled is None

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read the tokenizer of a model directory.

        Raises ConfigError that names the file which is missing or malformed.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: a model directory needs a fast tokenizer")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise ConfigError(f"{path} cannot be read: {error}") from None
        backend.no_padding()
        backend.no_truncation()
        settings = _read(directory / "tokenizer_config.json", required=False)
        template, special = _template(directory, settings), _special_tokens(settings)
        facts = _facts(backend, directory, settings)
        found = cls(backend, facts=facts, chat_template=template, special_tokens=special)
        ends = reply_ends(template, special, found.special_texts)
        ids = (id_ for end in ends if (id_ := found.id_of(end)) is not None)
        known = [id_ for id_ in ids if id_ < facts.vocab_size]
        stops = tuple(dict.fromkeys((*facts.stop_token_ids, *known)))
        found.facts = replace(facts, stop_token_ids=stops)
        return found

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`. Special tokens written in it count.

        With `special`, those that the tokenizer puts around a text of its own are added.
        """
        if self._words is not None and self._parted is not None and not special:
            return self._words.encode_parted(self._parted(text), self._added)
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def forget(self) -> None:
        """Keep nothing of the texts that were encoded."""
        if self._words is not None:
            self._words.forget()

    def decode(self, ids: Iterable[int], *, skip: frozenset[int] = frozenset()) -> str:
        """Text of `ids` without those in `skip`; bytes that are no UTF-8 become U+FFFD."""
        kept = list(ids)
        if skip and not skip.isdisjoint(kept):
            kept = [id_ for id_ in kept if id_ not in skip]
        text: str = self._backend.decode(kept, skip_special_tokens=False)
        return text

    def hidden_ids(self, more: Sequence[str], shown: Sequence[str]) -> frozenset[int]:
        """Special tokens and `more`, without those that are `shown`; what was asked for is kept."""
        key = (*more, "", *shown)
        found = self._hidden.get(key)
        if found is None:
            hidden = self.special_ids.union(self._ids_of(more)).difference(self._ids_of(shown))
            found = self._hidden[key] = hidden
        return found

    def _ids_of(self, tokens: Iterable[str]) -> set[int]:
        return {id_ for token in tokens if (id_ := self.id_of(token)) is not None}

    def id_of(self, token: str) -> int | None:
        """The id of one token by its own text, None where the vocabulary has no such token."""
        id_: int | None = self._backend.token_to_id(token)
        return id_

    def token_of(self, id_: int) -> str | None:
        """A token in the vocabulary's own spelling (byte-level tokens are not yet text)."""
        token: str | None = self._backend.id_to_token(id_)
        return token

    def first_invalid(self, ids: Sequence[int]) -> int | None:
        """An id that the model does not have, or None; checked before ids reach an engine."""
        return first_outside(ids, self.facts.vocab_size)


def _read(path: Path, *, required: bool = True) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ConfigError(f"{path} is missing")
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _facts(
    backend: tokenizers.Tokenizer, directory: Path, settings: Mapping[str, Any]
) -> ModelFacts:
    path = directory / "config.json"
    config = _read(path)
    text = text_config(config)
    generation = _read(directory / "generation_config.json", required=False)
    stops: dict[int, None] = {}
    for source in (text, generation):
        eos = source.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [eos]
        stops.update((id_, None) for id_ in ids if isinstance(id_, int))
    if named := _token_text(settings.get("eos_token")):
        id_ = backend.token_to_id(named)
        stops.update({id_: None} if id_ is not None else {})
    if not stops:
        raise ConfigError(f"{path} names no eos_token_id: a reply would never end")
    try:
        vocab_size = int(text["vocab_size"])
        context_length = int(text["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path} needs vocab_size and max_position_embeddings") from None
    if outside := [id_ for id_ in stops if not 0 <= id_ < vocab_size]:
        raise ConfigError(f"{path}: eos id {outside[0]} is outside the vocabulary of {vocab_size}")
    return ModelFacts(
        model_type=str(config.get("model_type", "")),
        vocab_size=vocab_size,
        context_length=context_length,
        stop_token_ids=tuple(stops),
        modalities=_modalities(directory, config),
    )


def _modalities(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What an encoder in the model's configuration, or a processor beside it, is for."""
    processors = [
        _read(directory / name, required=False)
        for name in ("preprocessor_config.json", "processor_config.json")
    ]
    named = {key for source in (config, *processors) for key in source}
    return tuple(kind for kind, keys in _ENCODERS.items() if named & keys)


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    """The default chat template: a file of its own, or a field (one, or a list of named ones)."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((entry["template"] for entry in found if entry["name"] == "default"), None)
    if not isinstance(found, str):
        raise ConfigError(
            f"{directory} has no chat template: neither chat_template.jinja nor chat_template in"
            " tokenizer_config.json"
        )
    return found


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        name: _token_text(value) for name, value in settings.items() if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if text is not None}


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _parted(
    added: Mapping[int, tokenizers.AddedToken],
) -> Callable[[str], list[str]] | None:
    """Cuts text at added tokens, every other part being one; None where white space goes along."""
    for token in added.values():
        if token.lstrip or token.rstrip or token.single_word or token.normalized:
            return None
    texts = sorted((token.content for token in added.values()), key=len, reverse=True)
    if not texts:
        return lambda text: [text]
    return re.compile(f"({'|'.join(map(re.escape, texts))})").split
