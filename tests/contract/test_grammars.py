"""What the engine is told to enforce, asked of the grammar library that enforces it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.formats import FORMATS
from gateway.tokens.formats.harmony import HARMONY
from gateway.tokens.grammar import enforced
from gateway.tokens.reply_format import ReplyFormat
from tests.fixtures_engine import engine_python
from tests.unit.tool_call_texts import SCHEMA, SCHEMAS, WRITTEN, both, look

pytestmark = pytest.mark.sglang

#: Between tags, no argument at all is an empty line.
_BARE = re.compile(r'(feed>|feed">|<tool_call>feed)\n')

#: Run by the engine's own interpreter: which texts a grammar takes in full.
_PROGRAM = """
import json, sys
import xgrammar
letters = [chr(code) for code in range(256)] + ["</s>"]
known = xgrammar.TokenizerInfo(letters, stop_token_ids=[256])
compiler = xgrammar.GrammarCompiler(known)
taken = []
for tag, texts in json.load(sys.stdin):
    compiled = compiler.compile_structural_tag(json.dumps(tag))
    for text in texts:
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        ok = matcher.accept_string(text)
        taken.append(bool(ok and matcher.is_completed()))
print(json.dumps(taken))
"""


def taken(asked: list[tuple[Any, list[str]]]) -> list[bool]:
    done = subprocess.run(
        [engine_python(), "-c", _PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    found: list[bool] = json.loads(done.stdout.splitlines()[-1])
    return found


def tools() -> list[dict[str, Any]]:
    # Nothing but what is named: a call with other arguments is then refused.
    schema = SCHEMA | {"additionalProperties": False}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in SCHEMAS
    ]


def test_calls_are_forced_as_the_models_of_each_form_write_them() -> None:
    asked: list[tuple[Any, list[str]]] = []
    for form in FORMATS:
        for parallel in (True, False):
            grammar, _ = enforced(
                None, tools(), ReplyFormat(calls=form), required=True, parallel=parallel
            )
            assert grammar is not None
            one = WRITTEN[form.name][3].replace("{}", look(form.name))
            wrong = one.replace("city", "town"), one.replace("look", "seek"), "Hello"
            two = _BARE.sub(r"\1\n\n", both(form.name))
            asked.append((grammar["structural_tag"], [one, two, *wrong]))
    names = [(form.name, parallel) for form in FORMATS for parallel in (True, False)]
    found = taken(asked)
    assert {name: found[at * 5 : at * 5 + 5] for at, name in enumerate(names)} == {
        (name, parallel): [True, parallel, False, False, False] for name, parallel in names
    }


def test_reasoning_may_come_before_a_call() -> None:
    call = look("hermes")
    texts = [call, f"<think>\nHm.\n</think>\n\n{call}", f"Hm.\n</think>\n\n{call}"]
    asked: list[tuple[Any, list[str]]] = []
    for prefilled in (False, True):
        form = ReplyFormat(think=True, prefilled=prefilled)
        grammar, _ = enforced(None, tools(), form, required=True)
        assert grammar is not None
        asked.append((grammar["structural_tag"], texts))
    # Where the prompt has opened the reasoning, all that comes before its end is that.
    assert taken(asked) == [True, True, False, False, True, True]


def test_what_is_enforced_stands_in_its_channel() -> None:
    answer = '{"city": "Oslo"}'
    final, call = f"<|channel|>final<|message|>{answer}", look("harmony")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    texts = [final, thought + final, call, thought + call, answer, "<|channel|>final<|message|>Hi"]
    given = {"json_schema": json.dumps(SCHEMA | {"additionalProperties": False})}
    asked: list[tuple[Any, list[str]]] = []
    for form in (HARMONY, HARMONY.untooled):
        grammar, _ = enforced(given, tools(), ReplyFormat(calls=form), required=False)
        assert grammar is not None
        asked.append((grammar["structural_tag"], texts))
    both_ways = [True, True, True, True, False, False]
    assert taken(asked) == [*both_ways, True, True, False, False, False, False]
