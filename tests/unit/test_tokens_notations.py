"""What is each family's own: arguments, messages, types, and the tags of its thought."""

from __future__ import annotations

import json

import pytest

from gateway.tokens.ends import reply_ends
from gateway.tokens.formats import FORMATS, Thought
from gateway.tokens.formats.gemma4 import GEMMA4
from gateway.tokens.formats.gemma4_grammar import arguments_grammar
from gateway.tokens.formats.inkling import INKLING
from gateway.tokens.grammar import enforced
from gateway.tokens.reasoning import reasoning_tokens
from gateway.tokens.reply_format import ReplyFormat, split
from tests.unit.test_tokens_families import FORMS, STOP, TOKENIZERS, streamed, whole
from tests.unit.tool_call_texts import SCHEMAS, look


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{}", "{}"),
        ("{city:'Oslo',days:3}", '{"city": "Oslo", "days": 3}'),
        ("{ a : 1 , b : [ 1 , 'x' ] }", '{"a": 1, "b": [1, "x"]}'),
        ("{'a b':{c:{}},d:[]}", '{"a b": {"c": {}}, "d": []}'),
        ("{a:true,b:false,c:null,d:-1.5e3}", '{"a": true, "b": false, "c": null, "d": -1.5e3}'),
        ("{a:'{}[],:\"\\\n'}", '{"a": "{}[],:\\"\\\\\\n"}'),
        ("{a:Oslo,b:12:30}", '{"a": "Oslo", "b": "12:30"}'),
        ("{a:1}x", '{"a": 1}'),
        ("{a:'Os", '{"a": "Os'),
        ("{a:'Oslo'", '{"a": "Oslo"'),
        # What a number will be is not known before its end.
        ("{a:1,b:12", '{"a": 1, "b": '),
        ("{a:1,b", '{"a": 1, '),
    ],
)
def test_gemmas_arguments_are_json(written: str, arguments: str) -> None:
    text = "<|tool_call>call:look" + written.replace("'", '<|"|>') + "<tool_call|>"
    form = ReplyFormat(calls=GEMMA4)
    assert split(text, form).calls == (("look", arguments),)
    ids = TOKENIZERS["gemma4"].encode(text)
    [call] = streamed("gemma4", [[id_] for id_ in ids], form).reply().tool_calls
    assert call.arguments == arguments
    if arguments.endswith("}"):
        json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("<|tool_call>call:f{a:1}<|tool_call>call:g{}<tool_call|>", "",
         [("f", '{"a": 1}'), ("g", "{}")]),
        ("A <|tool_call>call:f{a:<tool_call|> B", "AB", [("f", '{"a": ')]),
        ("A <|tool_call>f{}<tool_call|> B", "A <|tool_call>f{}<tool_call|> B", []),
        ("<|tool_call>call:f", "<|tool_call>call:f", []),
    ],
)  # fmt: skip
def test_gemmas_malformed_calls(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    taken = split(text, ReplyFormat(calls=GEMMA4))
    assert (taken.text, list(taken.calls)) == (shown, calls)


THOUGHT = "<|content_thinking|>Which?<|end_message|><|message_model|>"
CALL = 'look<|content_invoke_tool_json|>{"name":"look","args":{"a":1}}<|end_message|>'


@pytest.mark.parametrize(
    ("text", "shown", "reasoning", "calls"),
    [
        ("<|content_text|>Brown.<|end_message|>", "Brown.", "", []),
        (f"{THOUGHT}<|content_text|>Brown.", "Brown.", "Which?", []),
        (f"{THOUGHT}{CALL}<|message_model|>{CALL}", "", "Which?",
         [("look", '{"a":1}'), ("look", '{"a":1}')]),
        (f"<|content_text|>I look.<|end_message|><|message_model|>{CALL}", "I look.", "",
         [("look", '{"a":1}')]),
        (f"{THOUGHT}{THOUGHT}<|content_text|>A<|end_message|><|message_model|><|content_text|>B",
         "A\nB", "Which?\nWhich?", []),
        ('<|content_invoke_tool_json|>{"args": {}, "name": "f"}', "", "", [("f", "{}")]),
        ('f<|content_invoke_tool_json|>{"name":"f","args":{"a":', "", "", [("f", '{"a":')]),
        ("f<|content_invoke_tool_json|>no JSON", "no JSON", "", []),
        ("Plain words.", "Plain words.", "", []),
        ("Plain", "Plain", "", []),
        ("<|content_thinking|>Cut", "", "Cut", []),
        ("", "", "", []),
    ],
)  # fmt: skip
def test_inklings_messages_say_what_they_are(
    text: str, shown: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    form = ReplyFormat(calls=INKLING)
    taken = split(text, form)
    assert (taken.text, taken.reasoning, list(taken.calls)) == (shown, reasoning, calls)
    ids = TOKENIZERS["inkling"].encode(text)
    reply = streamed("inkling", [[id_] for id_ in ids], form).reply()
    assert (reply.text, reply.reasoning) == (shown, reasoning)


def test_inklings_words_without_a_mark_are_not_held_back() -> None:
    reader = INKLING.reader(lambda: "call_0", {})
    assert reader.feed("Plain") == []
    assert [delta.text for delta in reader.feed(" words")] == ["Plain words"]
    assert [delta.text for delta in reader.feed(" go on")] == [" go on"]


def test_inklings_messages_are_read_where_there_are_no_tools() -> None:
    form = ReplyFormat.of("<|content_invoke_tool_json|>", prompt_end="<|message_model|>")
    assert form.calls is INKLING.untooled
    ids = TOKENIZERS["inkling"].encode(THOUGHT + CALL)
    reply = streamed("inkling", [[id_] for id_ in ids], form).reply()
    assert (reply.text, reply.reasoning) == ('{"name":"look","args":{"a":1}}', "Which?")
    assert (reply.tool_calls, whole("inkling", ids, form)) == ((), reply)
    thought = TOKENIZERS["inkling"].encode(THOUGHT.removesuffix("<|message_model|>"))
    assert reasoning_tokens(TOKENIZERS["inkling"], ids, form, (STOP,)) == len(thought)


def dsml(*parameters: str, around: str = "tool_calls") -> str:
    inside = "\n".join(parameters)
    text = f'<@{around}>\n<@invoke name="look">\n{inside}\n</@invoke>\n</@{around}>'
    return text.replace("@", "\uff5cDSML\uff5c")


@pytest.mark.parametrize(
    ("parameter", "arguments"),
    [
        ('<@parameter name="city" string="true">3</@parameter>', '{"city": "3"}'),
        ('<@parameter name="city" string="false">3</@parameter>', '{"city": 3}'),
        ('<@parameter name="days" string="true">3</@parameter>', '{"days": "3"}'),
        ('<@parameter name="x" string="false">{"y": [1]}</@parameter>', '{"x": {"y": [1]}}'),
        ('<@parameter name="x" string="true">\na "b"\n</@parameter>', '{"x": "\\na \\"b\\"\\n"}'),
        ('<@parameter name="city">3</@parameter>', '{"city": "3"}'),
    ],
)
def test_a_dsml_parameter_says_itself_whether_it_is_text(parameter: str, arguments: str) -> None:
    form = ReplyFormat(calls=FORMS["dsml_v4"], schemas=SCHEMAS)
    taken = split(dsml(parameter), form)
    assert (taken.text, taken.calls) == ("", (("look", arguments),))


def test_the_tag_around_dsml_calls_is_never_shown() -> None:
    form = ReplyFormat(calls=FORMS["dsml_v4"])
    for text, shown in (
        ("A\n\n" + dsml() + "\n", "A"),
        ("A " + dsml().split("\n", maxsplit=1)[0] + " B", "A  B"),
        ("A " + dsml(around="function_calls").split("\n", maxsplit=1)[0], None),
    ):
        ids = TOKENIZERS["dsml_v4"].encode(text)
        reply = streamed("dsml_v4", [[id_] for id_ in ids], form).reply()
        assert reply.text == (text if shown is None else shown)


@pytest.mark.parametrize(
    ("name", "template", "opening", "closing"),
    [
        ("gemma4", "<|tool_call>call: <|channel>thought <channel|>", "<|channel>thought\n",
         "<channel|>"),
        ("hy3", "HYTK=':opensource' '<tool_sep{}>' '</think{}>'", "<think:opensource>",
         "</think:opensource>"),
        ("dsml_v4", "<\uff5cDSML\uff5ctool_calls> </think>", "<think>", "</think>"),
    ],
)  # fmt: skip
def test_each_family_has_its_own_tags_of_thought(
    name: str, template: str, opening: str, closing: str
) -> None:
    tokenizer = TOKENIZERS[name]
    tools = [{"type": "function", "function": {"name": one}} for one in SCHEMAS]
    for prefilled in (True, False):
        form = ReplyFormat.of(
            template, prompt_end="x" + opening if prefilled else opening + closing, tools=tools
        )
        assert (form.think, form.prefilled) == (True, prefilled)
        thought = ("" if prefilled else opening) + f"Where? <x> {closing[:3]}\n{closing}"
        ids = tokenizer.encode(thought + "Oslo." + look(name))
        reply = streamed(name, [[id_] for id_ in ids], form).reply()
        assert (reply.text, reply.reasoning) == ("Oslo.", f"Where? <x> {closing[:3]}")
        assert len(reply.tool_calls) == 1
        found = reasoning_tokens(tokenizer, ids, form, (STOP,))
        assert tokenizer.decode(ids[:found]) == thought


def test_thought_is_read_where_there_are_no_tools() -> None:
    form = ReplyFormat.of("<|tool_call> <channel|>", prompt_end="<|turn>model\n")
    assert form.calls is None
    ids = TOKENIZERS["gemma4"].encode("<|channel>thought\nHm.\n<channel|>Oslo.")
    reply = streamed("gemma4", [[id_] for id_ in ids], form).reply()
    assert (reply.text, reply.reasoning) == ("Oslo.", "Hm.")


def test_what_is_enforced_comes_after_the_familys_own_tags() -> None:
    given = {"json_schema": '{"type": "object"}'}
    thoughts: dict[str, Thought] = {form.name: form.thought for form in FORMATS}
    for name, begin, end in (
        ("gemma4", "<|channel>thought", "<channel|>"),
        ("hy3", "<think:opensource>", "</think:opensource>"),
    ):
        form = ReplyFormat(think=True, thought=thoughts[name])
        grammar, _ = enforced(given, (), form, required=False)
        assert grammar is not None
        reasoned, bare = grammar["structural_tag"]["format"]["elements"]
        tag, body = reasoned["elements"]
        assert (tag["begin"], tag["end"], body) == (begin, end, bare)


def test_gemmas_grammar_follows_a_schema_no_further_than_it_must() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"k": deep}}
    assert arguments_grammar(deep).count('"k:"') == 18
    odd = {"properties": {"a": 1, "b": {"type": 2, "enum": 3, "anyOf": 4}}, "required": 5}
    assert '"a:" value' in arguments_grammar(odd)
    assert '"b:" value' in arguments_grammar(odd)


def test_gemmas_replies_end_before_results_as_well() -> None:
    template = "{% for m in messages %}{{ m.content }}<turn|>{% endfor %}"
    ends = reply_ends(template, {}, {"<turn|>", "<|tool_response>"})
    assert ends == ("<turn|>", "<|tool_response>")


def test_inklings_replies_do_not_end_with_their_first_message() -> None:
    template = (
        "{% for m in messages %}<|message_model|><|content_text|>{{ m.content }}<|end_message|>"
        "<|content_model_end_sampling|>{% endfor %}{# <|content_invoke_tool_json|> #}"
    )
    special = {"<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"}
    assert reply_ends(template, {}, special) == ("<|content_model_end_sampling|>",)
