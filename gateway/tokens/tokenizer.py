"""A model's tokenizer, read from a Hugging Face directory with the `tokenizers` library alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the model's own files say of it.

    `vocab_size` is that of the model's embedding (`config.json`), which may be larger or smaller
    than the tokenizer's: an id at or beyond it crashes an engine. `stop_token_ids` are the ids
    that end a reply.
    """

    model_type: str
    vocab_size: int
    context_length: int
    stop_token_ids: tuple[int, ...]


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
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        decoder = json.loads(backend.to_str())["decoder"]
        #: Ids map to bytes one by one, so text can be put together without decoding windows.
        self.is_byte_level = decoder is not None and decoder["type"] == "ByteLevel"
        self._alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}

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
        return cls(
            backend,
            facts=_facts(backend, directory, settings),
            chat_template=_template(directory, settings),
            special_tokens=_special_tokens(settings),
        )

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`. Special tokens written in it count.

        With `special`, those that the tokenizer puts around a text of its own are added.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Iterable[int], *, skip: frozenset[int] = frozenset()) -> str:
        """Text of `ids` without those in `skip`; bytes that are no UTF-8 become U+FFFD."""
        kept = [id_ for id_ in ids if id_ not in skip]
        text: str = self._backend.decode(kept, skip_special_tokens=False)
        return text

    def id_of(self, token: str) -> int | None:
        """The id of one token by its own text, None where the vocabulary has no such token."""
        id_: int | None = self._backend.token_to_id(token)
        return id_

    def token_of(self, id_: int) -> str | None:
        """A token in the vocabulary's own spelling (byte-level tokens are not yet text)."""
        token: str | None = self._backend.id_to_token(id_)
        return token

    def bytes_of(self, id_: int) -> bytes:
        """The bytes that one id of a byte-level vocabulary stands for; none outside it."""
        found = self._bytes.get(id_)
        if found is None:
            token = self.token_of(id_) or ""
            values = [self._alphabet.get(character) for character in token]
            known = [value for value in values if value is not None]
            # A token with a character outside the alphabet was added as it stands.
            found = bytes(known) if len(known) == len(values) else token.encode()
            self._bytes[id_] = found
        return found

    def first_invalid(self, ids: Sequence[int]) -> int | None:
        """An id that the model does not have, or None; checked before ids reach an engine."""
        size = self.facts.vocab_size
        if not ids or (min(ids) >= 0 and max(ids) < size):
            return None
        return next(id_ for id_ in ids if not 0 <= id_ < size)


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
    text = {**config, **config.get("text_config", {})}
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
    )


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


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}
