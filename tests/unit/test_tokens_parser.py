from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gateway.records import Delta, Reply, ToolCall
from gateway.tokens.formats import HERMES
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.tokenizer import ModelFacts, Tokenizer
from tests.examples import examples
from tests.unit.chat_models import write_model

EOS = 2
TOOLED = ReplyFormat(think=True, calls=HERMES)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}{"}}\n</tool_call>'
PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", CALL, '{"name": "f", "arguments": {',
    '"x": "\\"}"', "}}", "}", "\n", "\n\n", " ", "Hi", "é", "日本", "🙂", "<", "</", "<tool",
    "STOP", "ST", '{"arguments": {"a": 1}, "name": "g"}', "\ufffd", '"', "\\",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_model(tmp_path_factory.mktemp("model")))


def mint() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def stream(
    tokenizer: Tokenizer,
    chunks: Sequence[Sequence[int]],
    form: ReplyFormat,
    stops: Sequence[str] = (),
) -> tuple[list[Delta], ReplyParser]:
    parser = ReplyParser(
        tokenizer, stop_token_ids=(EOS,), stop_strings=stops, form=form, mint=mint()
    )
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)]
    return deltas + parser.finish(), parser


def whole(
    tokenizer: Tokenizer, ids: Sequence[int], form: ReplyFormat, stops: Sequence[str] = ()
) -> Reply:
    return parse_reply(
        tokenizer,
        ids,
        stop_token_ids=(EOS,),
        stop_strings=stops,
        form=form,
        call_ids=(),
        mint=mint(),
    )


def cut(ids: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


forms = st.builds(ReplyFormat, think=st.booleans(), calls=st.none() | st.just(HERMES)) | st.just(
    ReplyFormat(think=True, calls=HERMES, prefilled=True)
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join)
places = st.lists(st.integers(0, 200), max_size=20)


@examples(400)
@given(
    text=texts,
    form=forms,
    stops=st.lists(st.sampled_from(["STOP", "TO", "é", "\n\n"]), max_size=3),
    places=places,
)
def test_any_split_gives_what_the_whole_gives(
    tokenizer: Tokenizer, text: str, form: ReplyFormat, stops: list[str], places: list[int]
) -> None:
    ids = [*tokenizer.encode(text), EOS]
    _, parser = stream(tokenizer, cut(ids, places), form, stops)
    assert parser.reply() == whole(tokenizer, ids, form, stops)
    _, one_by_one = stream(tokenizer, [[id_] for id_ in ids], form, stops)
    assert one_by_one.reply() == parser.reply()


@examples(200)
@given(ids=st.lists(st.integers(3, 425), max_size=40), places=places)
def test_any_ids_at_all_give_what_the_whole_gives(
    tokenizer: Tokenizer, ids: list[int], places: list[int]
) -> None:
    _, parser = stream(tokenizer, cut(ids, places), TOOLED)
    assert parser.reply() == whole(tokenizer, ids, TOOLED)


@given(text=st.text(max_size=30), places=places)
def test_plain_text_comes_out_as_it_went_in(
    tokenizer: Tokenizer, text: str, places: list[int]
) -> None:
    ids = tokenizer.encode(text)
    deltas, _ = stream(tokenizer, cut(ids, places), ReplyFormat())
    assert "".join(delta.text for delta in deltas) == text


def test_half_a_character_waits(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂")
    assert len(ids) == 4
    parser = ReplyParser(tokenizer, stop_token_ids=(EOS,), form=ReplyFormat(), mint=mint())
    assert [parser.feed([id_]) for id_ in ids[:3]] == [[], [], []]
    assert parser.feed(ids[3:]) == [Delta(text="🙂")]
    assert parser.finish() == []


def test_a_character_that_never_ends_is_shown_as_broken(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂")[:2]
    deltas, parser = stream(tokenizer, [ids], ReplyFormat())
    assert deltas == [Delta(text="\ufffd")]
    assert whole(tokenizer, ids, ReplyFormat()) == parser.reply()


def test_stop_tokens_and_special_tokens_are_never_shown(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("a<|im_start|>b"), EOS, *tokenizer.encode("after")]
    deltas, _ = stream(tokenizer, [ids[:2], ids[2:]], ReplyFormat())
    assert "".join(delta.text for delta in deltas) == "ab"
    assert whole(tokenizer, ids, ReplyFormat()).text == "ab"


def test_a_stop_string_is_held_back_and_cut(tokenizer: Tokenizer) -> None:
    parser = ReplyParser(
        tokenizer, stop_token_ids=(EOS,), stop_strings=("END",), form=ReplyFormat(), mint=mint()
    )
    assert parser.feed(tokenizer.encode("x E")) == [Delta(text="x ")]
    assert parser.feed(tokenizer.encode("N")) == []
    assert parser.feed(tokenizer.encode("O E")) == [Delta(text="ENO ")]
    assert parser.feed(tokenizer.encode("ND never")) == []
    assert parser.feed(tokenizer.encode("more")) == []
    assert parser.finish() == []
    assert parser.stopped_by == "END"


def test_the_stop_that_is_complete_first_wins(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("xabcd")
    for chunks in ([ids], [[id_] for id_ in ids]):
        _, parser = stream(tokenizer, chunks, ReplyFormat(), ("abcd", "bc"))
        assert (parser.reply().text, parser.stopped_by) == ("xa", "bc")


def test_reasoning_and_calls_are_taken_apart(tokenizer: Tokenizer) -> None:
    text = (
        "<think>\nLet me see.\n</think>\n\nTwo calls:\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    )
    deltas, parser = stream(tokenizer, [tokenizer.encode(text)], TOOLED)
    assert parser.reply() == Reply(
        text="Two calls:",
        reasoning="Let me see.",
        tool_calls=(
            ToolCall(id="call_0", name="f", arguments='{"a": "}"}'),
            ToolCall(id="call_1", name="g", arguments="{}"),
        ),
    )
    assert deltas[-4:] == [
        Delta(call_index=0, call_id="call_0", call_name="f"),
        Delta(call_index=0, arguments='{"a": "}"}'),
        Delta(call_index=1, call_id="call_1", call_name="g"),
        Delta(call_index=1, arguments="{}"),
    ]


def test_arguments_grow_as_they_are_sampled(tokenizer: Tokenizer) -> None:
    parser = ReplyParser(tokenizer, stop_token_ids=(EOS,), form=TOOLED, mint=mint())
    assert parser.feed(tokenizer.encode('<tool_call>{"name": "f", ')) == []
    assert parser.feed(tokenizer.encode('"arguments": {"city"')) == [
        Delta(call_index=0, call_id="call_0", call_name="f"),
        Delta(call_index=0, arguments='{"city"'),
    ]
    assert parser.feed(tokenizer.encode(': "Par')) == [Delta(call_index=0, arguments=': "Par')]
    assert parser.feed(tokenizer.encode('is"}}</tool_call>')) == [
        Delta(call_index=0, arguments='is"}')
    ]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<tool_call>no json</tool_call> ok", Reply(text="<tool_call>no json</tool_call> ok")),
        ("<tool_call>{\"name\": ", Reply(text='<tool_call>{"name": ')),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>',
         Reply(text='<tool_call>{"name": "", "arguments": {}}</tool_call>')),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
         Reply(tool_calls=(ToolCall(id="call_0", name="f", arguments='{"a": 1}'),))),
        ('<tool_call>{"name": "f", "arguments": {"a": 1',
         Reply(tool_calls=(ToolCall(id="call_0", name="f", arguments='{"a": 1'),))),
        ('<tool_call>{"name": "f", "arguments": {}}\n<tool_call>{"name": "g", "arguments": {}}',
         Reply(tool_calls=(ToolCall(id="call_0", name="f", arguments="{}"),
                           ToolCall(id="call_1", name="g", arguments="{}")))),
        ("say <think> now", Reply(text="say <think> now")),
        ("<think>never closed\n", Reply(reasoning="never closed")),
    ],
)  # fmt: skip
def test_malformed_replies(tokenizer: Tokenizer, text: str, reply: Reply) -> None:
    ids = tokenizer.encode(text)
    for chunks in ([ids], [[id_] for id_ in ids]):
        assert stream(tokenizer, chunks, TOOLED)[1].reply() == reply
    assert whole(tokenizer, ids, TOOLED) == reply


def test_ids_that_were_streamed_are_the_ones_stored(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CALL + CALL)
    _, parser = stream(tokenizer, [ids], TOOLED)
    reply = parse_reply(
        tokenizer,
        ids,
        stop_token_ids=(EOS,),
        form=TOOLED,
        call_ids=parser.call_ids,
        mint=lambda: pytest.fail("minted again"),
    )
    assert [call.id for call in reply.tool_calls] == ["call_0", "call_1"]


def test_the_form_comes_from_the_template_and_the_prompt() -> None:
    qwen = "... </think> ... <tool_call> ..."
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": 1}}}]
    assert ReplyFormat.of("plain", prompt_end="x") == ReplyFormat()
    assert ReplyFormat.of("plain", prompt_end="x", tools=tools).calls is HERMES
    assert ReplyFormat.of(qwen, prompt_end="<think>\n", tools=tools) == ReplyFormat(
        think=True, calls=HERMES, prefilled=True, schemas={"f": {"x": 1}}
    )
    assert ReplyFormat.of(qwen, prompt_end="</think>\n\n") == ReplyFormat(think=True)


def test_a_form_says_what_of_a_reply_is_read() -> None:
    assert ReplyFormat().plain
    assert not any(
        form.plain for form in (TOOLED, ReplyFormat(think=True), ReplyFormat(prefilled=True))
    )
    forced = replace(ReplyFormat(), calls=HERMES)
    assert not forced.plain
    assert forced.marks == ("<think>", "</think>", "<tool_call>", "</tool_call>")


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """A vocabulary that is not byte-level: words with a space mark, and single bytes."""
    words = [
        "<unk>",
        "\u2581Hi",
        "\u2581there",
        "!",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    backend = Backend(
        models.BPE(
            {word: index for index, word in enumerate(words)},
            [],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    facts = ModelFacts(model_type="x", vocab_size=300, context_length=99, stop_token_ids=(4,))
    return Tokenizer(backend, facts=facts, chat_template="", special_tokens={})


def test_other_vocabularies_are_decoded_in_context(pieces: Tokenizer) -> None:
    assert not pieces.is_byte_level
    smile = [5 + byte for byte in "🙂".encode()]
    ids = [1, 2, 3, *smile, 1]
    parser = ReplyParser(pieces, stop_token_ids=(4,), form=ReplyFormat(), mint=mint())
    shown = ["".join(delta.text for delta in parser.feed([id_])) for id_ in ids]
    assert shown == ["Hi", " there", "!", "", "", "", "🙂", " Hi"]
    assert parser.finish() == []
    assert parser.reply().text == pieces.decode(ids)


@given(
    st.lists(
        st.sampled_from([[1], [3]])
        | st.sampled_from("🙂é日\ufffda ").map(
            lambda letter: [5 + byte for byte in letter.encode()]
        ),
        max_size=10,
    )
)
def test_one_by_one_is_the_whole_in_other_vocabularies_too(
    pieces: Tokenizer, parts: list[list[int]]
) -> None:
    ids = list(itertools.chain.from_iterable(parts))
    _, parser = stream(pieces, [[id_] for id_ in ids], ReplyFormat())
    assert parser.reply().text == pieces.decode(ids)


def test_bytes_that_never_become_a_character_are_shown_in_the_end(pieces: Tokenizer) -> None:
    parser = ReplyParser(pieces, stop_token_ids=(4,), form=ReplyFormat(), mint=mint())
    assert parser.feed([1, 5 + 0xF0]) == [Delta(text="Hi")]
    assert parser.finish() == [Delta(text="\ufffd")]


def test_models_may_be_read_from_disk(tmp_path: Path) -> None:
    without_tags = Tokenizer.load(write_model(tmp_path, tags=False))
    ids = without_tags.encode("<think>a</think>" + CALL)
    for chunks in ([ids], [[id_] for id_ in ids]):
        reply = stream(without_tags, chunks, TOOLED)[1].reply()
        assert (reply.reasoning, reply.text, len(reply.tool_calls)) == ("a", "", 1)
