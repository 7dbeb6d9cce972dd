"""What is remembered of texts, and how much."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gateway.tokens.memory import Memory
from gateway.tokens.words import Words


def test_what_is_asked_for_again_outlives_what_is_not() -> None:
    texts = [f"{number}".ljust(100) for number in range(8)]
    memory: Memory[int] = Memory(4 * 350)  # Four such texts, 250 being added to each.
    for number in range(5):
        memory.put(texts[number], number)
    # The first four are the older generation now, of which one is taken into the younger.
    assert memory.get(texts[0]) == 0
    for number in range(5, 8):
        memory.put(texts[number], number)
    assert [memory.get(text) for text in texts[1:4]] == [None, None, None]
    assert (memory.get(texts[7]), memory.get(texts[0])) == (7, 0)


def test_a_text_that_would_push_out_the_others_is_not_kept() -> None:
    memory: Memory[int] = Memory(4_000)
    memory.put("a" * 751, 1)
    memory.put("b" * 750, 2)
    assert memory.get("a" * 751) is None
    assert memory.get("b" * 750) == 2


def test_words_are_encoded_alike_when_they_come_again_and_once_they_are_forgotten() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id_ for id_, letter in enumerate([*alphabet, "an", "ann", "\u0120ann"])}
    merges = [("a", "n"), ("an", "n"), ("\u0120", "ann")]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    words = Words.of(backend)
    assert words is not None
    text = "ann is\t\x7fann"
    wanted = [vocabulary["ann"], *(vocabulary[letter] for letter in "\u0120is"),
              *(vocabulary[letter] for letter in "\u0109\u0121"), vocabulary["ann"]]  # fmt: skip
    assert words.encode(text) == wanted
    words.encode(text).append(0)
    assert words.encode(text) == wanted
    assert words._texts.get(text) is not None
    assert words._known["ann"] == [vocabulary["ann"]]
    words.forget()
    assert (words._texts.get(text), words._known) == (None, {})
    assert words.encode(text) == wanted
