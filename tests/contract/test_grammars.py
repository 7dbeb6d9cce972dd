"""What the engine is told to enforce, asked of the grammar library that enforces it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.formats import FORMATS, ChannelFormat
from gateway.tokens.formats.gemma4 import GEMMA4
from gateway.tokens.formats.harmony import HARMONY
from gateway.tokens.formats.hunyuan import HY3
from gateway.tokens.formats.inkling import INKLING
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


QUOTED = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "n": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "string"}},
        "o": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": ["string", "null"]}},
            "required": ["x"],
        },
        "e": {"enum": ["p", "q"]},
        "any": {},
    },
    "required": ["n"],
}
#: Gemma's arguments, and whether they are what the schema says.
NOTATIONS = {
    "{n:3}": True,
    "{a:'x',n:3,l:['a','b'],o:{x:1.5e3,y:null},e:'q'}": True,
    "{n:3,l:[],any:{k:[1,{z:'w'}]}}": True,
    "{a:'a < b <| c <|\" d << <<|\",{}',n:0}": True,
    "{}": False,
    "{a:'x'}": False,
    "{n:3,a:'x'}": False,
    "{n:3.5}": False,
    "{n:3,o:{y:null}}": False,
    "{n:3,e:'r'}": False,
    "{n:3,}": False,
}


def test_gemmas_arguments_are_those_of_the_schema() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": QUOTED}}
    grammar, _ = enforced(None, [tool], ReplyFormat(calls=GEMMA4), required=True)
    assert grammar is not None
    texts = ["<|tool_call>call:f" + one.replace("'", '<|"|>') + "<tool_call|>" for one in NOTATIONS]
    assert dict(zip(NOTATIONS, taken([(grammar["structural_tag"], texts)]), strict=True)) == (
        NOTATIONS
    )


def test_hunyuans_arguments_are_those_of_the_schema() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": QUOTED}}
    grammar, _ = enforced(None, [tool], ReplyFormat(calls=HY3), required=True)
    assert grammar is not None
    asked = {
        (("n", "3"),): True,
        (("a", "x <y>"), ("n", "3"), ("o", '{"x": 1}'), ("e", "q")): True,
        (("a", "x"),): False,
        (("n", "3"), ("e", "r")): False,
        (("n", "3"), ("o", "{}")): False,
        (): False,
    }
    texts = []
    for pairs in asked:
        inside = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs
        )
        call = f"<tool_calls>\n<tool_call>f<tool_sep>\n{inside}</tool_call>\n</tool_calls>"
        texts.append(re.sub(r"(</?(?:tool|arg)_\w+)>", r"\1:opensource>", call))
    assert dict(zip(asked, taken([(grammar["structural_tag"], texts)]), strict=True)) == asked


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


@pytest.mark.parametrize(
    ("channels", "opening", "thought"),
    [
        (
            HARMONY,
            "<|channel|>final<|message|>",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        ),
        (
            INKLING,
            "<|content_text|>",
            "<|content_thinking|>Hm.<|end_message|><|message_model|>",
        ),
    ],
    ids=["harmony", "inkling"],
)
def test_what_is_enforced_stands_in_its_channel(
    channels: ChannelFormat, opening: str, thought: str
) -> None:
    answer = '{"city": "Oslo"}'
    final, call = opening + answer, look(channels.name)
    texts = [final, thought + final, call, thought + call, answer, opening + "Hi"]
    given = {"json_schema": json.dumps(SCHEMA | {"additionalProperties": False})}
    asked: list[tuple[Any, list[str]]] = []
    for form in (channels, channels.untooled):
        grammar, _ = enforced(given, tools(), ReplyFormat(calls=form), required=False)
        assert grammar is not None
        asked.append((grammar["structural_tag"], texts))
    both_ways = [True, True, True, True, False, False]
    assert taken(asked) == [*both_ways, True, True, False, False, False, False]
