"""Every family of the `renderers` package: a reply as its renderer writes it, read in any pieces.

The models' own tokenizers cannot be had offline: the vocabulary is bytes and the tokens that the
renderer asks for by name, and what the renderer writes stands in for the chat template. The
renderer of gpt-oss needs OpenAI's vocabulary from the network, so its replies are written here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers.configs import BaseRendererConfig

from gateway.records import FinishReason, Message, Reply, Trail, new_id
from gateway.tokens.formats import format_of
from gateway.tokens.library_renderer import LibraryRenderer
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.reasoning import reasoning_tokens
from gateway.tokens.renderer import common_prefix
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.tokenizer import Tokenizer
from tests.unit.library_families import HARMONY, LIBRARY, tokenizer_of

FAMILIES = {**LIBRARY, "gpt-oss": HARMONY}
TOKENIZERS = {name: tokenizer_of(family) for name, family in FAMILIES.items()}
RENDERERS = {name: LibraryRenderer(TOKENIZERS[name], name) for name in LIBRARY}

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "deep": {"type": "object"},
        "many": {"type": "array"},
        "warm": {"type": "boolean"},
    },
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
ASKED: Message = {"role": "user", "content": "Hi"}

Arguments = dict[str, Any]


def reply_of(thought: str, said: str, calls: Sequence[Arguments]) -> Message:
    return {
        "role": "assistant",
        "content": said,
        "reasoning_content": thought,
        "tool_calls": [
            {
                "id": f"functions.look:{index}",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps(one, ensure_ascii=False)},
            }
            for index, one in enumerate(calls)
        ],
    }


def written(name: str, reply: Message) -> tuple[list[int], list[int]]:
    """(the prompt, the reply up to what ends it) as the family writes them."""
    if name == "gpt-oss":
        return by_hand(reply)
    renderer, family = RENDERERS[name], FAMILIES[name]
    prompt = renderer.render([ASKED], TOOLS, family.kwargs)
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": "r"}
        for call in reply["tool_calls"]
    ]
    whole = renderer.render([ASKED, reply, *results], TOOLS, family.kwargs)
    if name == "deepseek-r1":
        # Its prompts open the reasoning, and its template leaves out that of every reply.
        thought = TOKENIZERS[name].encode(f"{reply['reasoning_content']}\n</think>\n\n")
        return prompt, [*thought, *whole[common_prefix(prompt, whole) :]]
    assert whole[: len(prompt)] == prompt
    return prompt, whole[len(prompt) :]


def by_hand(reply: Message) -> tuple[list[int], list[int]]:
    opening = "<|start|>assistant"
    said = [f"<|channel|>analysis<|message|>{reply['reasoning_content']}<|end|>"]
    if reply["content"]:
        said.append(f"<|channel|>commentary<|message|>{reply['content']}<|end|>")
    said += [
        f"<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
        f"{call['function']['arguments']}<|call|>"
        for call in reply["tool_calls"]
    ]
    encode = TOKENIZERS["gpt-oss"].encode
    return encode(opening), encode(opening.join(said))


def form_of(name: str, prompt: Sequence[int]) -> ReplyFormat:
    tokenizer = TOKENIZERS[name]
    # What a template writes stands in it.
    ids = itertools.chain(*written(name, reply_of("Hm.", "", [{"days": 1}])))
    return ReplyFormat.of(
        tokenizer.decode(ids), prompt_end=tokenizer.decode(prompt[-16:]), tools=TOOLS
    )


def mint() -> Any:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def streamed(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], form: ReplyFormat) -> Reply:
    stops = tokenizer.facts.stop_token_ids
    parser = ReplyParser(tokenizer, stop_token_ids=stops, form=form, mint=mint())
    for chunk in chunks:
        parser.feed(chunk)
    parser.finish()
    return parser.reply()


def whole(tokenizer: Tokenizer, ids: Sequence[int], form: ReplyFormat) -> Reply:
    stops = tokenizer.facts.stop_token_ids
    return parse_reply(tokenizer, ids, stop_token_ids=stops, form=form, call_ids=(), mint=mint())


def called(reply: Reply) -> list[tuple[str, Arguments]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def test_every_family_of_the_package_is_here() -> None:
    configs = [BaseRendererConfig]
    for config in configs:
        configs += config.__subclasses__()
    named = {one.model_fields["name"].default for one in configs if "name" in one.model_fields}
    assert named - {"auto", "custom", "default"} == set(FAMILIES)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("burst", [True, False])
def test_what_a_family_writes_is_read(name: str, burst: bool) -> None:
    family, tokenizer = FAMILIES[name], TOKENIZERS[name]
    calls: list[Arguments] = [{"city": "Oslo", "days": 3}]
    if name != "llama-3":
        calls.append({"deep": {"a": [1, "x"]}})
    # Gemma's template writes what was said behind the results of the calls.
    said = "" if name in {"gemma4", "llama-3"} else "Two."
    prompt, ids = written(name, reply_of("Hm.", said, calls))
    form = form_of(name, prompt)
    assert form.calls is not None
    assert form.calls.name == family.form
    reply = streamed(tokenizer, [ids] if burst else [[id_] for id_ in ids], form)
    assert called(reply) == [("look", one) for one in calls]
    assert (reply.text.strip(), reply.reasoning) == (said, "Hm." if family.thinks else "")
    assert whole(tokenizer, ids, form) == reply
    stops = tokenizer.facts.stop_token_ids
    thought = ids[: reasoning_tokens(tokenizer, ids, form, stops)]
    assert ("Hm." in tokenizer.decode(thought)) is family.thinks
    assert "look" not in tokenizer.decode(thought)
    assert format_of(tokenizer.decode([*prompt, *ids])) is form.calls


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_a_result_extends_the_ids_that_were_sampled(name: str) -> None:
    tokenizer, renderer, kwargs = TOKENIZERS[name], RENDERERS[name], FAMILIES[name].kwargs
    reply = reply_of("Hm.", "", [{"city": "Oslo"}])
    prompt, ids = written(name, reply)
    stops = tokenizer.facts.stop_token_ids
    end = next(index for index, id_ in enumerate(ids, 1) if id_ in stops)
    trail = Trail(
        turn_id=new_id(),
        prompt_ids=prompt,
        sampled_ids=ids[:end],
        finish_reason=FinishReason.STOP,
    )
    result: Message = {"role": "tool", "tool_call_id": "functions.look:0", "content": "20 C"}
    told = [ASKED, reply, result]
    extension = renderer.extend(trail, [result], told, TOOLS, kwargs)
    if name == "deepseek-r1":
        # Its template leaves the reasoning out even while a result is awaited.
        assert extension.reason == "template_not_append_only"
        return
    assert extension.ids is not None
    anew = tokenizer.decode(
        renderer.render([ASKED, reply, {**result, "name": "look"}], TOOLS, kwargs)
    )
    if name in {"laguna-m.1", "laguna-xs.2"}:
        # The package extends without the line break that it writes behind a reply.
        anew = anew.replace("</assistant>\n", "</assistant>")
    assert tokenizer.decode(extension.ids) == anew


#: No "<" before a letter or a bar: nothing of these is a mark.
letters = st.text(st.sampled_from(list("ab 1\n\"\\{}[]:,;.'=/>é日🙂\ufffd")), max_size=8)
#: Templates take white space off what was said or thought.
trimmed = letters.map(str.strip)
values = st.fixed_dictionaries(
    {},
    optional={
        "city": letters,
        "days": st.integers(-99, 99),
        "deep": st.dictionaries(
            st.sampled_from(["a", "b c", "é"]), letters | st.none(), max_size=2
        ),
        "many": st.lists(letters | st.integers(0, 9) | st.lists(st.booleans()), max_size=3),
        "warm": st.booleans(),
    },
)


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    # Where nothing was thought, some templates write another beginning than the prompt has.
    thought=trimmed.map("Hm.{}".format),
    said=trimmed,
    calls=st.lists(values, min_size=1, max_size=2),
    places=st.lists(st.integers(0, 400), max_size=20),
)
def test_any_split_of_what_a_family_writes_gives_the_same(
    name: str, thought: str, said: str, calls: list[Arguments], places: list[int]
) -> None:
    tokenizer = TOKENIZERS[name]
    if name in {"gemma4", "llama-3"}:
        said = ""
    if name == "llama-3":
        calls = calls[:1]
    prompt, ids = written(name, reply_of(thought, said, calls))
    form = form_of(name, prompt)
    edges = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    chunks = [ids[start:end] for start, end in itertools.pairwise(edges)]
    reply = streamed(tokenizer, chunks, form)
    assert reply == whole(tokenizer, ids, form)
    assert streamed(tokenizer, [[id_] for id_ in ids], form) == reply
    assert called(reply) == [("look", one) for one in calls]
    assert reply.text.strip() == said
    assert reply.reasoning.strip() == (thought if FAMILIES[name].thinks else "")
