"""A tiny model that agents can work with: it calls a shell, says one sentence, and ends.

Its head has a strong preference after each token of a script, so what it samples is known though it
is sampled, but for the token that an answer begins with: any of many, half characters and NUL among
them. Two random layers below make every probability depend on the whole prompt. Prompts of agents
are long: its vocabulary is learned from the guides, and its context holds any of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway.local.environments import checkout
from tests.proof.sessions.talker import KEEPING
from tests.proof.wire.agents import Agent
from tests.tiny_model import END_OF_TEXT, HIDDEN, IM_END, IM_START, MARKERS, make_model

CONTEXT = 131_072
WORD, SAID = "öne", "Warm."

_READ = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_WORDS, _OPENINGS = 4_000, 600
_ANSWERS = "<|answers|>"
_TAIL = '"}}\n</tool_call>'
_PREFERENCE = 30.0  # nats above a token that nothing has named
_LAYERS_SCALE = 0.15


def make_speaker(directory: Path, agents: Sequence[Agent]) -> Path:
    """An HF directory of a model that calls the shell of each of these agents."""
    make_model(directory)
    tokenizer = _tokenizer(agents)
    tokenizer.save(str(directory / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    end = {"eos_token_id": tokenizer.token_to_id(IM_END)}
    end |= {"pad_token_id": tokenizer.token_to_id(END_OF_TEXT)}
    room = {"vocab_size": vocab, "max_position_embeddings": CONTEXT}
    _change(directory / "config.json", **room, **end)
    _change(directory / "generation_config.json", **end)
    _change(directory / "tokenizer_config.json", model_max_length=CONTEXT)

    weights = load_file(directory / "model.safetensors")
    rng = np.random.default_rng(7)
    embedding = rng.standard_normal((vocab, HIDDEN)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    head = rng.standard_normal((vocab, HIDDEN)).astype(np.float32) * 0.04
    follows = _follows(tokenizer, agents)
    # At right angles, so that no token of the script is taken for another.
    angles = np.linalg.qr(rng.standard_normal((HIDDEN, len(follows) + 1)))[0].T.astype(np.float32)
    embedding[list(follows)] = angles[1:]
    openings = _openings(tokenizer, follows)
    # Nearly one to the model: the sentence follows each.
    embedding[openings] = angles[0] + embedding[openings] * 0.3
    for before, afters in follows.items():
        head[afters or openings] += _PREFERENCE / np.sqrt(HIDDEN) * embedding[before]
    head[tokenizer.encode(SAID).ids[0]] += _PREFERENCE / np.sqrt(HIDDEN) * angles[0]
    weights["model.embed_tokens.weight"] = embedding * np.float32(np.sqrt(HIDDEN))
    weights["lm_head.weight"] = head
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = value * np.float32(_LAYERS_SCALE)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def speaking_for(agent: Agent, model: Path, directory: Path) -> Path:
    """What a gateway reads of the model, with the chat template with which it serves one agent."""
    directory.mkdir(parents=True)
    for name in _READ:
        shutil.copy(model / name, directory / name)
    (directory / "chat_template.jinja").write_text(_template(agent))
    return directory


def _template(agent: Agent) -> str:
    """A chat template that tells the model what to do.

    It opens a reply to a result, or where there are no tools, by the mark of an answer, and any
    other by that of a call. The message before is enough for that, so this template only appends.
    """
    text = KEEPING
    for begins, before in (
        ("{{- '<|im_start|>' + message.role + '\\n' }}", "loop.previtem"),
        ("{{- '<|im_start|>assistant\\n' }}", "messages[-1]"),
    ):
        assert text.count(begins) == 1
        answers = f"not tools or {before}.role == 'tool'"
        mark = f"{{{{- '{_ANSWERS}' if {answers} else '{_mark(agent)}' }}}}"
        if before == "loop.previtem":
            mark = f"{{%- if message.role == 'assistant' %}}{mark}{{%- endif %}}"
        text = text.replace(begins, begins + mark)
    return text


def _mark(agent: Agent) -> str:
    return f"<|{agent.call[0]}|>"


def _head(agent: Agent) -> str:
    """A call up to the word that the shell is to say."""
    name, argument = agent.call
    arguments = {**agent.extra, argument: "echo "}
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments})[: -len('"}}')]


def _tokenizer(agents: Sequence[Agent]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_WORDS,
        special_tokens=[END_OF_TEXT, IM_START, IM_END, _ANSWERS, *sorted({*map(_mark, agents)})],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    guides = sorted((checkout() / "docs").glob("*.md"))
    tokenizer.train_from_iterator([guide.read_text() for guide in guides], trainer)
    texts = (*MARKERS, _TAIL, *sorted({*map(_head, agents)}))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in texts])
    return tokenizer


def _follows(tokenizer: Tokenizer, agents: Sequence[Agent]) -> dict[int, list[int]]:
    """What comes after each token of the script: one, or with none any opening."""
    follows: dict[int, list[int]] = {tokenizer.token_to_id(_ANSWERS): []}
    calls = [f"{_mark(agent)}{_head(agent)}{WORD}{_TAIL}{IM_END}" for agent in agents]
    for text in (*calls, f"{SAID}{IM_END}"):
        for before, after in pairwise(tokenizer.encode(text).ids):
            assert follows.setdefault(before, [after]) == [after], f"{text!r} is ambiguous"
    return follows


def _openings(tokenizer: Tokenizer, follows: dict[int, list[int]]) -> list[int]:
    """All bytes and the commonest words, but for those of the script."""
    first = tokenizer.token_to_id("!")
    script = {*follows, *(after for afters in follows.values() for after in afters)}
    return [id_ for id_ in range(first, first + _OPENINGS) if id_ not in script]


def _change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1))
