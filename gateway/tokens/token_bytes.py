"""What each token of a byte-level vocabulary stands for."""

from __future__ import annotations

from collections.abc import Callable


class TokenBytes(dict[int, bytes]):
    """The bytes of an id, none outside the vocabulary. What was read before needs no call.

    `token_of` gives a token in the vocabulary's own spelling.
    """

    def __init__(self, token_of: Callable[[int], str | None]) -> None:
        super().__init__()
        self._token_of = token_of
        self._alphabet = _byte_alphabet()

    def __missing__(self, id_: int) -> bytes:
        token = self._token_of(id_) or ""
        values = [self._alphabet.get(character) for character in token]
        known = [value for value in values if value is not None]
        # A token with a character outside the alphabet was added as it stands.
        found = self[id_] = bytes(known) if len(known) == len(values) else token.encode()
        return found


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}
