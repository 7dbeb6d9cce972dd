"""JSON that no well-behaved client sends: strange values, changes of a body, its writing."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any


class Raw(str):
    """Written as it stands, JSON or not."""

    __slots__ = ()


def nested(depth: int) -> Any:
    """A value inside so many arrays and objects."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"type": value}
    return value


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 17, 511, 512, 100_000, 2**31, 2**63 - 1, 2**63, -(2**63) - 1,
    2**64, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308,
    Raw("1e999"), Raw("-1e999"), Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("01"),
    Raw("-"), Raw("1."), Raw("'a'"), Raw("undefined"), Raw(""), Raw("{"), Raw("]"), Raw('"'),
    Raw('"\\x00"'), Raw('"\\ud800"'), Raw('"\\u12"'), Raw("[" * 100_000), Raw('{"a":' * 20_000),
    "", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "\ufffe", "\u202e", "🎉", "e\u0301" * 40,
    "x" * 5_000,
    "<|im_end|>", "<|im_start|>system\n", "<think>", "</think>", "<tool_call>\n{", "</tool_call>",
    "{{ 7 * 7 }}", "{% raw %}", "null", "[]", "{}", "auto", "none", "required", "text", "tool",
    "json_object", "json_schema", "function", "message", "assistant", "user", "system",
    "tool_result", "tool_use", "image_url", "item_reference", "resp_" + "f" * 32,
    "msg_" + "f" * 36, "tiny", "gpt-4",
    [], {}, [[]], [{}], [None], [1, 2, 3], [-1], [512], [2**63], ["a", 1], [[1], [2]], {"": ""},
    {"type": "text"}, {"type": None}, {"type": "text", "text": None}, {"type": []},
    {"role": "user"},
    {"a": {"a": {"a": []}}}, {"17": 1}, {"512": 1}, {"-1": 1}, {"17": "x"}, {"٣": 1},
    {"99999999999": 1}, nested(40),
    Raw(json.dumps(nested(120))), Raw(json.dumps(nested(400))),
)  # fmt: skip

#: Fields of all dialects and of other servers, to be put where they mean something or nothing.
NAMES = (
    "model", "messages", "prompt", "input", "instructions", "system", "tools", "tool_choice",
    "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
    "stop_sequences", "stop_token_ids", "bad_words", "bad_words_ids", "allowed_token_ids",
    "prompt_token_ids", "input_ids", "token_ids", "prompt_logprobs", "logit_bias", "logprobs",
    "top_logprobs", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "response_format", "output_format", "output_config", "text", "reasoning", "reasoning_effort",
    "thinking", "include", "metadata", "client_metadata", "user", "safety_identifier", "store",
    "previous_response_id", "conversation", "background", "truncation", "functions",
    "function_call", "parallel_tool_calls", "modalities", "audio", "prediction", "service_tier",
    "verbosity", "web_search_options", "prompt_cache_key", "chat_template_kwargs", "thread",
    "context_management", "mcp_servers", "container", "suffix", "echo", "role", "content", "type",
    "name", "id", "call_id", "tool_call_id", "tool_calls", "arguments", "output", "summary",
    "reasoning_content", "refusal", "format", "schema", "json_schema", "strict", "regex", "ebnf",
    "structural_tag", "custom_params", "lora_path", "rid", "return_logprob", "score", "thumbs",
    "source", "extra_body", "__proto__", "$ref", "",
)  # fmt: skip

Place = tuple[Any, Any]
#: Lists in lists, each many times over, would fill the memory: what is longer is not written.
_MOST_CHARACTERS = 1_000_000


def changed(body: Any, rng: Random) -> Any:
    """The body, which is changed in place, after one random change."""
    holder = [body]
    where, key = rng.choice(_places(holder))
    change = rng.choice(_CHANGES)
    change(where, key, rng, _places(holder))
    return holder[0]


def written(value: Any, rng: Random) -> bytes:
    """As JSON, or what would be JSON but for a raw part, in one of the ways in which it can be."""
    ascii_only = rng.random() < 0.5
    twice = rng.random() < 0.05
    text = _text(value, ascii_only, twice, rng)
    return text.encode("utf-8", "surrogatepass")


def _text(value: Any, ascii_only: bool, twice: bool, rng: Random) -> str:
    """As much of it as a body may have."""
    parts: list[str] = []
    size = 0
    for part in _parts(value, ascii_only, twice, rng):
        parts.append(part)
        size += len(part)
        if size > _MOST_CHARACTERS:
            break
    return "".join(parts)


def _parts(value: Any, ascii_only: bool, twice: bool, rng: Random) -> Iterator[str]:
    if isinstance(value, Raw):
        yield str(value)
    elif isinstance(value, dict) and twice and value:
        pairs = [
            f"{json.dumps(str(key), ensure_ascii=ascii_only)}:"
            f"{_text(item, ascii_only, twice, rng)[:_MOST_CHARACTERS]}"
            for key, item in value.items()
        ]
        pairs.insert(0, rng.choice(pairs))
        yield "{" + ",".join(pairs) + "}"
    elif isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield "," if index else ""
            yield f"{json.dumps(str(key), ensure_ascii=ascii_only)}:"
            yield from _parts(item, ascii_only, twice, rng)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _parts(item, ascii_only, twice, rng)
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=ascii_only)


def _places(holder: list[Any]) -> list[Place]:
    """(where, key) of every value inside; the first one is the body itself."""
    found: list[Place] = []
    waiting: list[Any] = [holder]
    while waiting:
        where = waiting.pop()
        for key in where if isinstance(where, dict) else range(len(where)):
            found.append((where, key))
            if isinstance(where[key], (dict, list)):
                waiting.append(where[key])
    return found


def _strange(rng: Random) -> Any:
    return copy.deepcopy(rng.choice(STRANGE))


def _replace(where: Any, key: Any, rng: Random, _: list[Place]) -> None:
    where[key] = _strange(rng)


def _remove(where: Any, key: Any, rng: Random, _: list[Place]) -> None:
    if isinstance(where, dict):
        del where[key]
    else:
        where[key] = None


def _copy(where: Any, key: Any, rng: Random, places: list[Place]) -> None:
    other, name = rng.choice(places)
    # A value inside itself could not be written.
    where[key] = copy.deepcopy(other[name])


def _wrap(where: Any, key: Any, rng: Random, _: list[Place]) -> None:
    value = where[key]
    where[key] = rng.choice(([value], {"type": value}, {"content": value}, [value] * 3))


def _add(where: Any, key: Any, rng: Random, _: list[Place]) -> None:
    value = where[key]
    if isinstance(value, dict):
        value[rng.choice(NAMES)] = _strange(rng)
    elif isinstance(value, list):
        value.insert(rng.randint(0, len(value)), _strange(rng))
    else:
        where[key] = {rng.choice(NAMES): value}


def _grow(where: Any, key: Any, rng: Random, _: list[Place]) -> None:
    value = where[key]
    if isinstance(value, str):
        spoil = rng.choice([item for item in STRANGE if type(item) is str])
        at = rng.randint(0, len(value))
        where[key] = value[:at] + spoil + value[at:]
    elif isinstance(value, list):
        value *= rng.choice((2, 20, 200))
    elif isinstance(value, dict):
        value |= {f"{name}_{number}": 0 for number in range(50) for name in NAMES[:3]}
    else:
        number = float(value or 1) if abs(value or 1) < 2**63 else 1.0
        where[key] = rng.choice((-1, 10, 1e9, -1e9, 0.1)) * number


_CHANGES = (_replace, _replace, _replace, _remove, _copy, _wrap, _add, _add, _grow)
