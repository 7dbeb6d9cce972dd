from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import ConfigError, InvalidRequest
from gateway.records import FinishReason, Message, Trail, new_id
from gateway.tokens.choice import make_renderer
from gateway.tokens.library_renderer import LibraryRenderer
from gateway.tokens.renderer import Extension, common_prefix
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer
from tests.examples import examples
from tests.unit.chat_models import CHATML, COUNTING, LLAMA3, REASONING, write_model

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
user = st.builds(lambda text: {"role": "user", "content": text}, words)
result = st.builds(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}, words)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "chatml": Tokenizer.load(write_model(folder / "a", CHATML)),
        "llama": Tokenizer.load(write_model(folder / "b", LLAMA3, eos="<|eot_id|>")),
        "reasoning": Tokenizer.load(write_model(folder / "c", REASONING, model_type="qwen3")),
        "counting": Tokenizer.load(write_model(folder / "d", COUNTING)),
    }


def trail(
    prompt: Sequence[int], sampled: Sequence[int], finish: FinishReason = FinishReason.STOP
) -> Trail:
    return Trail(turn_id=new_id(), prompt_ids=prompt, sampled_ids=sampled, finish_reason=finish)


def say(tokenizer: Tokenizer, text: str) -> list[int]:
    return [*tokenizer.encode(text), tokenizer.facts.stop_token_ids[0]]


def extend(
    tokenizer: Tokenizer,
    reply: Message,
    sampled: str,
    new: list[Message],
    tools: Sequence[dict[str, Any]] = (),
) -> tuple[Trail, Extension, list[int]]:
    """(the parent's trail, its extension, the whole conversation rendered anew)."""
    renderer = TemplateRenderer(tokenizer)
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    parent = trail(renderer.render(asked, tools, {}), say(tokenizer, sampled))
    messages = [*asked, reply, *new]
    extension = renderer.extend(parent, new, messages, tools, {})
    return parent, extension, renderer.render(messages, tools, {})


@examples(120)
@given(
    family=st.sampled_from(["chatml", "llama", "reasoning"]),
    history=st.lists(st.tuples(words, words), min_size=1, max_size=3),
    system=st.none() | words,
    new=st.lists(user, min_size=1, max_size=2),
    tools=st.sampled_from([(), (TOOL,)]),
)
def test_an_extension_equals_the_full_render_where_replies_round_trip(  # noqa: PLR0917 - by name
    models: dict[str, Tokenizer],
    family: str,
    history: list[tuple[str, str]],
    system: str | None,
    new: list[Message],
    tools: Sequence[dict[str, Any]],
) -> None:
    tokenizer = models[family]
    renderer = TemplateRenderer(tokenizer)
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    ids: list[int] = []
    sampled: list[int] = []
    for index, (asked, written) in enumerate(history):
        said = written.strip()  # Llama 3's template trims what it shows again.
        turn: list[Message] = [{"role": "user", "content": asked}]
        messages += turn
        if index:
            extension = renderer.extend(trail(ids, sampled), turn, messages, tools, {})
            assert extension.reason is None
            assert extension.ids is not None
            assert extension.ids[: len(ids) + len(sampled)] == [*ids, *sampled]
            ids = extension.ids
        else:
            ids = renderer.render(messages, tools, {})
        assert ids == renderer.render(messages, tools, {})
        sampled = say(tokenizer, said)
        messages.append({"role": "assistant", "content": said})
    last = renderer.extend(trail(ids, sampled), new, [*messages, *new], tools, {})
    assert last.ids == renderer.render([*messages, *new], tools, {})


@examples(60)
@given(noise=st.lists(st.integers(3, 400), max_size=20), new=st.lists(user, min_size=1, max_size=2))
def test_the_trails_own_ids_always_come_first(
    models: dict[str, Tokenizer], noise: list[int], new: list[Message]
) -> None:
    tokenizer = models["chatml"]
    renderer = TemplateRenderer(tokenizer)
    stop = tokenizer.facts.stop_token_ids[0]
    assume(stop not in noise)
    parent = trail(noise, [*noise, stop])
    told: list[Message] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "?"}]
    extension = renderer.extend(parent, new, [*told, *new], (), {})
    assert extension.ids is not None
    assert extension.ids[: 2 * len(noise) + 1] == [*noise, *noise, stop]
    closing = tokenizer.encode("\n<|im_start|>user\n" + new[0]["content"] + "<|im_end|>\n")
    added = extension.ids[2 * len(noise) + 1 :]
    assert added[: len(closing)] == closing


def test_ids_that_do_not_round_trip_are_kept(models: dict[str, Tokenizer]) -> None:
    tokenizer = models["chatml"]
    renderer = TemplateRenderer(tokenizer)
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    letter_by_letter = [id_ for letter in "helpful" for id_ in tokenizer.encode(letter)]
    assert letter_by_letter != tokenizer.encode("helpful")
    stop = tokenizer.facts.stop_token_ids[0]
    parent = trail(renderer.render(asked, (), {}), [*letter_by_letter, stop])
    new: list[Message] = [{"role": "user", "content": "Thanks!"}]
    messages = [*asked, {"role": "assistant", "content": "helpful"}, *new]
    extension = renderer.extend(parent, new, messages, (), {})
    assert extension.ids is not None
    assert extension.ids != renderer.render(messages, (), {})
    assert tokenizer.decode(extension.ids) == tokenizer.decode(renderer.render(messages, (), {}))


@examples(30)
@given(results=st.lists(result, min_size=1, max_size=4), asked=st.lists(user, max_size=1))
def test_tool_results_extend(
    models: dict[str, Tokenizer], results: list[Message], asked: list[Message]
) -> None:
    reply = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    said = '\n<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    parent, extension, full = extend(models["reasoning"], reply, said, [*results, *asked], (TOOL,))
    assert extension.ids == full
    assert full[: len(parent.prompt_ids)] == parent.prompt_ids


def test_reasoning_is_kept_through_tools_and_dropped_by_the_next_question(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["reasoning"]
    said = "<think>\nHm.\n</think>\n\nIt is fine."
    question: list[Message] = [{"role": "user", "content": "And now?"}]
    reply: Message = {"role": "assistant", "content": "It is fine.", "reasoning_content": "Hm."}
    _, extension, _ = extend(tokenizer, reply, said, question)
    assert extension == Extension(reason="template_dropped_reasoning")
    results: list[Message] = [{"role": "tool", "tool_call_id": "c1", "content": "20 C"}]
    parent, extension, _ = extend(
        tokenizer, {**reply, "tool_calls": [CALL]}, said, results, (TOOL,)
    )
    assert extension.ids is not None
    assert extension.ids[: len(parent.prompt_ids)] == parent.prompt_ids


def test_a_template_that_rewrites_the_past_is_never_extended(models: dict[str, Tokenizer]) -> None:
    reply: Message = {"role": "assistant", "content": "a"}
    _, extension, _ = extend(models["counting"], reply, "a", [{"role": "user", "content": "b"}])
    assert extension == Extension(reason="template_not_append_only")


@pytest.mark.parametrize(
    ("finish", "sampled", "new", "reason"),
    [
        (FinishReason.LENGTH, "a", [{"role": "user", "content": "b"}], "parent_truncated"),
        (FinishReason.ABORT, "a", [{"role": "user", "content": "b"}], "parent_truncated"),
        (FinishReason.STOP, "a", [{"role": "user", "content": "b"}], "parent_not_closed"),
        (FinishReason.STOP, "", [{"role": "user", "content": "b"}], "parent_not_closed"),
        (FinishReason.STOP, "a<|im_end|>", [], "nothing_new"),
        (FinishReason.STOP, "a<|im_end|>", [{"role": "assistant", "content": "b"},
                                            {"role": "user", "content": "c"}], "history_edited"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["template", "qwen3"])
def test_what_cannot_be_extended_says_why(  # noqa: PLR0917 - pytest passes them by name
    models: dict[str, Tokenizer],
    family: str,
    finish: FinishReason,
    sampled: str,
    new: list[Message],
    reason: str,
) -> None:
    tokenizer = models["reasoning"]
    renderer = make_renderer(family, tokenizer)
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    parent = trail(renderer.render(asked, (), {}), tokenizer.encode(sampled), finish)
    messages = [*asked, {"role": "assistant", "content": "a"}, *new]
    assert renderer.extend(parent, new, messages, (), {}) == Extension(reason=reason)


def test_a_conversation_without_a_question_is_rendered_in_full(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["chatml"]
    renderer = TemplateRenderer(tokenizer)
    greeting: list[Message] = [{"role": "system", "content": "s"}]
    parent = trail(renderer.render(greeting, (), {}), say(tokenizer, "Hello"))
    new: list[Message] = [{"role": "user", "content": "b"}]
    messages = [*greeting, {"role": "assistant", "content": "Hello"}, *new]
    assert renderer.extend(parent, new, messages, (), {}).reason == "template_not_append_only"


def test_tools_change_the_prompt_only_where_the_template_shows_them(
    models: dict[str, Tokenizer],
) -> None:
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    for family, uses in (("chatml", False), ("reasoning", True)):
        renderer = TemplateRenderer(models[family])
        assert renderer.uses_tools is uses
        differs = renderer.render(asked, (TOOL,), {}) != renderer.render(asked, (), {})
        assert differs is uses


def test_auto_takes_the_library_only_where_it_renders_as_the_template_does(
    models: dict[str, Tokenizer], tmp_path: Path
) -> None:
    assert isinstance(make_renderer("auto", models["chatml"]), TemplateRenderer)
    assert isinstance(make_renderer("auto", models["llama"]), TemplateRenderer)
    assert isinstance(make_renderer("auto", models["reasoning"]), LibraryRenderer)
    other = REASONING.replace("<|im_start|>assistant", "<|im_start|>Assistant")
    changed = Tokenizer.load(write_model(tmp_path, other, model_type="qwen3"))
    assert isinstance(make_renderer("auto", changed), TemplateRenderer)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such", "no renderer named"),
        ("default", "no renderer named"),
        ("qwen3:some", "neither tool_cycle nor all"),
        ("qwen3", "does not fit"),
    ],
)
def test_a_renderer_that_does_not_exist_or_fit_is_the_operators_error(
    tmp_path: Path, name: str, words: str
) -> None:
    tokenizer = Tokenizer.load(write_model(tmp_path, tags=False))
    with pytest.raises(ConfigError, match=words):
        make_renderer(name, tokenizer)


def test_the_library_bridges_over_reasoning_where_all_of_it_is_kept(
    models: dict[str, Tokenizer],
) -> None:
    tokenizer = models["reasoning"]
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    new: list[Message] = [{"role": "user", "content": "And?"}]
    reply: Message = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for name, kept in (("qwen3", False), ("qwen3:all", True)):
        renderer = make_renderer(name, tokenizer)
        parent = trail(
            renderer.render(asked, (), {}), say(tokenizer, "<think>\nHm.\n</think>\n\nYes.")
        )
        extension = renderer.extend(parent, new, [*asked, reply, *new], (), {})
        if kept:
            added = tokenizer.encode("\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n")
            assert extension.ids == [*parent.prompt_ids, *parent.sampled_ids, *added]
        else:
            assert extension == Extension(reason="template_dropped_reasoning")


def test_the_library_follows_the_requests_template_arguments(models: dict[str, Tokenizer]) -> None:
    renderer = make_renderer("qwen3", models["reasoning"])
    asked: list[Message] = [{"role": "user", "content": "Hi"}]
    off = renderer.render(asked, (), {"enable_thinking": False, "unknown": 1})
    assert models["reasoning"].decode(off).endswith("<think>\n\n</think>\n\n")
    assert off != renderer.render(asked, (), {})
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        renderer.render(asked, (), {"enable_thinking": [1]})


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    shared = common_prefix(a, b)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]
