"""Every way of writing calls: read in any pieces as read whole, and as a human would read it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.pipeline.turn import joined
from gateway.tokens import tokenizer as ours
from gateway.tokens.formats import FORMATS, HERMES, THINK, CallFormat, format_of
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.reasoning import reasoning_tokens
from gateway.tokens.reply_format import ReplyFormat, split
from gateway.tokens.splitter import Splitter
from tests.examples import examples
from tests.unit.tool_call_texts import ONE, SCHEMA, SCHEMAS, WRITTEN, both, deepseek, look

FORMS = {form.name: form for form in FORMATS}


def tokenizer_of(form: CallFormat) -> ours.Tokenizer:
    """Bytes, a stop token, and the form's own marks: every other one special, as in some models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|stop|>", special=True)])
    marks = [*THINK.marks, *form.thought.marks, *form.wrappers, *form.marks]
    for index, mark in enumerate(dict.fromkeys(marks)):
        backend.add_tokens([AddedToken(mark, normalized=False, special=index % 2 == 1)])
    facts = ours.ModelFacts(
        model_type="x", vocab_size=400, context_length=999, stop_token_ids=(256,)
    )
    return ours.Tokenizer(backend, facts=facts, chat_template="", special_tokens={})


TOKENIZERS = {name: tokenizer_of(form) for name, form in FORMS.items()}
STOP = 256


def mint() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def streamed(
    name: str, chunks: Sequence[Sequence[int]], form: ReplyFormat, stops: Sequence[str] = ()
) -> ReplyParser:
    parser = ReplyParser(
        TOKENIZERS[name], stop_token_ids=(STOP,), stop_strings=stops, form=form, mint=mint()
    )
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)] + parser.finish()
    assert joined(deltas) == parser.reply()
    return parser


def whole(name: str, ids: Sequence[int], form: ReplyFormat, stops: Sequence[str] = ()) -> Any:
    return parse_reply(
        TOKENIZERS[name],
        ids,
        stop_token_ids=(STOP,),
        stop_strings=stops,
        form=form,
        call_ids=(),
        mint=mint(),
    )


def cut(ids: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


def pieces_of(name: str) -> list[str]:
    """Whole calls, their halves, the form's marks, and what may be mistaken for them."""
    form, one = FORMS[name], look(name)
    halves = [part for at in range(0, len(one), 7) for part in (one[:at], one[at:])]
    parameters = ["<parameter=note>", "</parameter>", "<arg_key>note</arg_key><arg_value>",
                  "</arg_value>", '<parameter name="note">', "</function>"]  # fmt: skip
    return [
        one, both(name), *form.marks, *form.wrappers, *halves, *parameters,
        *THINK.marks, form.thought.open, form.thought.close, '<|"|>', "call:f{a:",
        "\n", "\n\n", " ", "Hi", "é", "日本", "🙂", "<", "</", "{", "}", "[",
        "]", ";", ",", '"', "\\", '{"answer": 1}', '{"parameters": {"x": "}"}, "name": "k"}',
        '{"type": "function", "name": "t", "parameters": {}}', "STOP", "ST", "\ufffd", "True",
    ]  # fmt: skip


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, str]:
    name = draw(st.sampled_from(sorted(FORMS)))
    parts = st.sampled_from(pieces_of(name)) | st.text(
        st.characters(exclude_categories=("Cs",)), max_size=4
    )
    return name, "".join(draw(st.lists(parts, max_size=10)))


places = st.lists(st.integers(0, 400), max_size=20)


@examples(800)
@given(
    reply=replies(),
    think=st.booleans(),
    prefilled=st.booleans(),
    own=st.booleans(),
    stops=st.lists(st.sampled_from(["STOP", "TO", "é", "\n\n", "}", "🙂"]), max_size=2),
    places=places,
)
def test_any_split_gives_what_the_whole_gives(  # noqa: PLR0917 - hypothesis passes them by name
    reply: tuple[str, str],
    think: bool,
    prefilled: bool,
    own: bool,
    stops: list[str],
    places: list[int],
) -> None:
    name, text = reply
    form = ReplyFormat(
        think=think,
        prefilled=think and prefilled,
        thought=FORMS[name].thought if own else THINK,
        calls=FORMS[name],
        schemas=SCHEMAS,
    )
    ids = [*TOKENIZERS[name].encode(text), STOP, *TOKENIZERS[name].encode("after")]
    expected = whole(name, ids, form, stops)
    assert streamed(name, cut(ids, places), form, stops).reply() == expected
    assert streamed(name, [[id_] for id_ in ids], form, stops).reply() == expected


@examples(400)
@given(reply=replies(), places=places)
def test_any_cutting_of_the_text_gives_what_the_whole_gives(
    reply: tuple[str, str], places: list[int]
) -> None:
    name, text = reply
    form = ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    splitter = Splitter(form, mint())
    parts = ["".join(part) for part in cut(list(text), places)]
    deltas = [delta for part in parts for delta in splitter.feed(part)]
    found = joined([*deltas, *splitter.feed("", final=True)])
    taken = split(text, form)
    assert (found.text, found.reasoning) == (taken.text, taken.reasoning)
    assert tuple((call.name, call.arguments) for call in found.tool_calls) == taken.calls


@pytest.mark.parametrize("name", sorted(FORMS))
@pytest.mark.parametrize("burst", [True, False])
def test_two_calls_are_read_whether_they_come_at_once_or_not(name: str, burst: bool) -> None:
    form = ReplyFormat(think=True, calls=FORMS[name], schemas=SCHEMAS)
    thought = "<think>\nWhere?\n</think>\n\n"
    ids = [*TOKENIZERS[name].encode(thought + both(name)), STOP]
    parser = streamed(name, [ids] if burst else [[id_] for id_ in ids], form)
    reply = parser.reply()
    assert (reply.text.strip(), reply.reasoning) == ("", "Where?")
    assert [(call.id, call.name) for call in reply.tool_calls] == [
        ("call_0", "look"),
        ("call_1", "feed"),
    ]
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [
        {"city": "Oslo", "days": 3},
        {},
    ]


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"inkling", "llama3"}))
def test_what_is_said_before_a_call_is_text(name: str) -> None:
    form = ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    around = WRITTEN[name][3]
    text = "I will look.\n" + around.replace("{}", look(name))
    ids = TOKENIZERS[name].encode(text)
    reply = streamed(name, [[id_] for id_ in ids], form).reply()
    assert reply.text.rstrip() == "I will look."
    assert [call.arguments for call in reply.tool_calls] == [ONE]


@pytest.mark.parametrize("name", sorted(FORMS))
def test_arguments_grow_as_they_are_sampled(name: str) -> None:
    form = ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    parser = ReplyParser(TOKENIZERS[name], stop_token_ids=(STOP,), form=form, mint=mint())
    text = look(name) if name != "mistral_list" else "[TOOL_CALLS] [" + look(name)
    before, after = text.split("slo")
    parser.feed(TOKENIZERS[name].encode(before))
    [call] = parser.reply().tool_calls
    assert (call.name, call.arguments) == ("look", '{"city": "O')
    parser.feed(TOKENIZERS[name].encode("slo" + after))
    parser.finish()
    assert parser.reply().tool_calls[0].arguments == ONE


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_call_cut_short_keeps_what_there_is(name: str) -> None:
    form = ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    text = look(name) if name != "mistral_list" else "[TOOL_CALLS] [" + look(name)
    ids = TOKENIZERS[name].encode(text[: text.index("slo")])
    [call] = streamed(name, [ids], form).reply().tool_calls
    assert call.arguments == '{"city": "O'
    assert whole(name, ids, form).tool_calls == (call,)


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ('{"answer": {"name": "x"}}', '{"answer": {"name": "x"}}', []),
        ('{"name": "x"}', '{"name": "x"}', []),
        ('{"name": "x", "parameters": 3}', "", [("x", "3")]),
        ('{"parameters": {"a": "}"}, "name": "x"}', "", [("x", '{"a": "}"}')]),
        ('{"type": "function", "name": "x", "parameters": {"a": 1}}', "", [("x", '{"a": 1}')]),
        ('{"name": "x", "arguments": {}}', "", [("x", "{}")]),
        ('<|python_tag|>{"name": "x", "parameters": {}}', "", [("x", "{}")]),
        ('Hm. <|python_tag|>{"name": "x", "parameters": {}}', "Hm.", [("x", "{}")]),
        ('<|python_tag|>print("x")', '<|python_tag|>print("x")', []),
        ('I say {"name": "x", "parameters": {}}', 'I say {"name": "x", "parameters": {}}', []),
        ('{"name": "x", "parameters": {}} and more', "and more", [("x", "{}")]),
        ('{"name": "x", "parameters": {}}\n{"name": "y", "parameters": {"b": [1]}}', "",
         [("x", "{}"), ("y", '{"b": [1]}')]),
        ("", "", []),
        ("{", "{", []),
    ],
)  # fmt: skip
def test_llamas_replies(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    form = ReplyFormat(calls=FORMS["llama3"])
    taken = split(text, form)
    assert (taken.text, list(taken.calls)) == (shown, calls)


def test_json_that_is_no_call_is_not_held_back() -> None:
    splitter = Splitter(ReplyFormat(calls=FORMS["llama3"]), mint())
    assert splitter.feed('{ "') == []
    assert [delta.text for delta in splitter.feed('answer": [')] == ['{ "answer": [']
    assert [delta.text for delta in splitter.feed("1, 2")] == ["1, 2"]


@pytest.mark.parametrize(
    ("value", "key", "arguments"),
    [
        ("3", "days", '{"days": 3}'),
        ("three", "days", '{"days": "three"}'),
        ("3", "city", '{"city": "3"}'),
        ('say "hi"\n\\', "city", '{"city": "say \\"hi\\"\\n\\\\"}'),
        ("null", "note", '{"note": "null"}'),
        ("C", "unit", '{"unit": "C"}'),
        ('{"a": [1]}', "deep", '{"deep": {"a": [1]}}'),
        ("NaN", "days", '{"days": "NaN"}'),
        ("True", "other", '{"other": true}'),
        ("</tool_call>", "city", '{"city": "</tool_call>"}'),
    ],
)
def test_parameters_get_the_types_of_the_schema(value: str, key: str, arguments: str) -> None:
    text = (
        f"<tool_call>\n<function=look>\n<parameter={key}>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    form = ReplyFormat(calls=FORMS["qwen_coder"], schemas=SCHEMAS)
    assert split(text, form).calls == (("look", arguments),)
    assert json.loads(arguments)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_forced_call_is_written_as_it_is_read(name: str) -> None:
    """What the grammar puts around arguments, with arguments as JSON inside."""
    tools = [
        {"type": "function", "function": {"name": tool, "parameters": SCHEMA}} for tool in SCHEMAS
    ]
    tag = FORMS[name].grammar(tools, parallel=True)
    elements = tag["elements"] if tag["type"] == "sequence" else [tag]
    text = ""
    for element in elements:
        if element["type"] == "const_string":
            text += element["value"]
            continue
        assert (element["at_least_one"], element["stop_after_first"]) == (True, False)
        inside = "{}" if element["tags"][0]["content"].get("style") is None else ""
        if name == "kimi_k2":
            number, mark, _ = element["tags"][0]["content"]["elements"]
            assert number == {"type": "regex", "pattern": r"\d+"}
            inside = "0" + mark["value"] + inside
        text += element["separator"].join(
            one["begin"] + inside + one["end"] for one in element["tags"]
        )
    form = ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    ids = TOKENIZERS[name].encode(text)
    reply = whole(name, ids, form)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("look", "{}"),
        ("feed", "{}"),
    ]
    assert not reply.text.strip()


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_second_call_is_never_sampled_where_one_is_allowed(name: str) -> None:
    text, form = both(name), ReplyFormat(calls=FORMS[name], schemas=SCHEMAS)
    ids = TOKENIZERS[name].encode(text)
    stops = [stop for stop in FORMS[name].one_call_stops if stop in text]
    assert stops
    if name != "mistral":
        [call] = whole(name, ids, form, FORMS[name].one_call_stops).tool_calls
        assert call.name == "look"


THOUGHT = "<|channel|>analysis<|message|>Which fox?<|end|>"
AGAIN = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"a": 1}'


@pytest.mark.parametrize(
    ("text", "shown", "reasoning", "calls"),
    [
        ("<|channel|>final<|message|>Brown.", "Brown.", "", []),
        (f"{THOUGHT}{AGAIN}<|channel|>final<|message|>Brown.<|return|>", "Brown.", "Which fox?",
         []),
        (f"{THOUGHT}{AGAIN}<|channel|>analysis<|message|>The brown one.<|end|>", "",
         "Which fox?\nThe brown one.", []),
        (f"{THOUGHT}{AGAIN}<|channel|>commentary<|message|>I look.<|end|>{AGAIN}{CALL}",
         "I look.", "Which fox?", [("look", '{"a": 1}')]),
        (f"{AGAIN} to=functions.look<|channel|>commentary json<|message|>{{}}<|call|>", "", "",
         [("look", "{}")]),
        ("<|channel|>commentary<|message|>One.<|end|><|channel|>final<|message|>Two.",
         "One.\nTwo.", "", []),
        ("<|channel|>analysis<|message|>Cut", "", "Cut", []),
        ("<|channel|>ana", "", "", []),
        ("Plain.", "Plain.", "", []),
        ("<|channel|>final<|message|>A <|message|> mark.", "A <|message|> mark.", "", []),
        ("", "", "", []),
    ],
)  # fmt: skip
def test_channels_say_what_a_message_is(
    text: str, shown: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    form = ReplyFormat(calls=FORMS["harmony"])
    taken = split(text, form)
    assert (taken.text, taken.reasoning, list(taken.calls)) == (shown, reasoning, calls)


def test_channels_are_read_where_there_are_no_tools() -> None:
    template = "<|start|>assistant<|channel|>analysis<|message|>"
    form = ReplyFormat.of(template, prompt_end="<|start|>assistant")
    assert form.calls is not None
    text = f"{THOUGHT}{AGAIN}<|channel|>commentary to=functions.look<|message|>{{}}<|call|>"
    ids = TOKENIZERS["harmony"].encode(text)
    reply = streamed("harmony", [[id_] for id_ in ids], form).reply()
    assert (reply.text, reply.reasoning, reply.tool_calls) == ("{}", "Which fox?", ())
    assert whole("harmony", ids, form) == reply
    thought = len(TOKENIZERS["harmony"].encode(THOUGHT))
    assert reasoning_tokens(TOKENIZERS["harmony"], ids, form, (STOP,)) == thought
    assert reasoning_tokens(TOKENIZERS["harmony"], ids[: thought - 2], form, (STOP,)) == thought - 2
    answer = TOKENIZERS["harmony"].encode("<|channel|>final<|message|>Brown.")
    assert reasoning_tokens(TOKENIZERS["harmony"], answer, form, (STOP,)) == 0


def test_templates_say_which_form_they_want() -> None:
    templates = {
        "hermes": "<tool_call>{name} </think>",
        "qwen_coder": "<tool_call><function=f><parameter=p>",
        "glm": "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value>",
        "llama3": "<|start_header_id|>ipython<|end_header_id|>",
        "mistral": "[TOOL_CALLS]f[ARGS]",
        "mistral_list": "[TOOL_CALLS][",
        "deepseek_v3": deepseek("<|tool_call_begin|>function<|tool_sep|>"),
        "deepseek_v31": deepseek("<|tool_call_begin|>' + name + '<|tool_sep|>"),
        "kimi_k2": "<|tool_call_argument_begin|>",
        "minimax_m2": "<minimax:tool_call><invoke",
        "harmony": "<|start|>assistant<|channel|>analysis<|message|>",
        "dsml_v32": "<\uff5cDSML\uff5cfunction_calls> message.tool_calls",
        "dsml_v4": "<\uff5cDSML\uff5ctool_calls>",
        "gemma4": "<|channel>thought\n<channel|><|tool_call>call:f{}<tool_call|>",
        "hy3": "set HYTK = ':opensource' '<tool_sep{}>'.format(HYTK) '<arg_key{}>' '</think{}>'",
        "hy3_preview": "<tool_sep> <arg_key> <arg_value> <tool_call>",
        "inkling": "<|content_invoke_tool_json|>",
    }
    assert {name: format_of(text).name for name, text in templates.items()} == {
        name: name for name in FORMS
    }
    assert format_of("<|im_start|>") is HERMES
