from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.errors import ConfigError
from gateway.records import DESCRIBED, FinishReason, Media, Trail
from gateway.tokens.choice import make_renderer
from gateway.tokens.marks import is_marked
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer
from tests.media import AUDIO_MARK, IMAGE_MARK, TEMPLATE, make_seeing_model
from tests.unit.chat_models import write_model

#: One that reads lists of parts only, and writes another mark.
PARTS_ONLY = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + ':' }}
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}
{{- '<|image_pad|>' }}{% endif %}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}
"""
IMAGE = Media(kind="image", source="data:image/png;base64,AA==")
AUDIO = Media(kind="audio", source="data:audio/wav;base64,AA==")


def part(kind: str = "image") -> dict[str, Any]:
    type_ = {"image": "image_url", "audio": "input_audio"}[kind]
    return {"type": type_, DESCRIBED: {"kind": kind, "type": None, "bytes": 1, "sha256": "0"}}


def shown(text: str, *kinds: str) -> dict[str, Any]:
    parts = [part(kind) for kind in kinds]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


def with_template(template: str, path: Path) -> Tokenizer:
    return Tokenizer.load(make_seeing_model(path / "model", template))


def ids_of(tokenizer: Tokenizer, *tokens: str) -> dict[int, int]:
    found = [tokenizer.id_of(token) for token in tokens]
    assert None not in found
    return {id_: 1 for id_ in found if id_ is not None}


def test_files_say_what_a_model_takes(tokenizer: Tokenizer, tiny_model: Path) -> None:
    assert tokenizer.facts.modalities == ("image", "audio")
    assert Tokenizer.load(tiny_model).facts.modalities == ()


def test_the_template_tells_its_marks(tokenizer: Tokenizer) -> None:
    assert make_renderer("auto", tokenizer).marks == {
        "image": ids_of(tokenizer, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
        "audio": ids_of(tokenizer, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"),
    }
    assert make_renderer("template", tokenizer, ("audio",)).marks.keys() == {"audio"}
    assert make_renderer("auto", tokenizer, ()).marks == {}


def test_a_template_without_a_place_takes_text_alone(tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = with_template(PARTS_ONLY, tmp_path)
    assert make_renderer("auto", tokenizer).marks.keys() == {"image"}
    with pytest.raises(ConfigError, match="no place for audio"):
        make_renderer("auto", tokenizer, ("image", "audio"))
    with pytest.raises(ConfigError, match="no place for image"):
        make_renderer("template", Tokenizer.load(tiny_model), ("image",))
    with pytest.raises(ConfigError, match="renders text alone"):
        make_renderer("qwen3", Tokenizer.load(write_model(tmp_path / "text")), ("image",))


def test_parts_stand_where_they_were_sent(tokenizer: Tokenizer) -> None:
    renderer = make_renderer("auto", tokenizer)
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, part(), part("audio"), *shown("b")["content"]],
    }
    text = f"<|im_start|>user\na{IMAGE_MARK}{AUDIO_MARK}b<|im_end|>\n<|im_start|>assistant\n"
    ids = renderer.render([message], (), {})
    assert ids == tokenizer.encode(text)
    assert is_marked(ids, [IMAGE, AUDIO], renderer.marks)


@pytest.mark.parametrize(
    ("text", "media", "marked"),
    [
        (IMAGE_MARK, [IMAGE], True),
        (IMAGE_MARK * 2, [IMAGE, IMAGE], True),
        (IMAGE_MARK + AUDIO_MARK, [AUDIO, IMAGE], True),
        (IMAGE_MARK * 2, [IMAGE], False),
        (IMAGE_MARK + "<|image_pad|>", [IMAGE], False),
        ("", [IMAGE], False),
        (IMAGE_MARK, [AUDIO], False),
    ],
)
def test_marks_are_counted(
    tokenizer: Tokenizer, text: str, media: list[Media], marked: bool
) -> None:
    marks = make_renderer("auto", tokenizer).marks
    assert is_marked(tokenizer.encode(f"What is {text}?"), media, marks) is marked


def test_a_kind_without_marks_is_never_marked(tokenizer: Tokenizer) -> None:
    marks = make_renderer("auto", tokenizer, ("audio",)).marks
    assert not is_marked(tokenizer.encode(IMAGE_MARK), [IMAGE], marks)


def test_templates_that_read_parts_only_get_texts_as_parts(tmp_path: Path) -> None:
    tokenizer = with_template(PARTS_ONLY, tmp_path)
    ids = TemplateRenderer(tokenizer).render(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], (), {}
    )
    assert tokenizer.decode(ids) == (
        "<|im_start|>system:Be brief.<|im_end|>\n<|im_start|>user:Why?<|im_end|>\n"
        "<|im_start|>assistant:"
    )


@pytest.mark.parametrize("template", [TEMPLATE, PARTS_ONLY])
def test_recorded_ids_are_extended_past_and_by_an_image(template: str, tmp_path: Path) -> None:
    tokenizer = with_template(template, tmp_path)
    renderer = make_renderer("auto", tokenizer)
    asked, said = shown("What is it?", "image"), {"role": "assistant", "content": "A fox."}
    more = shown("And this?", "image")
    prompt = renderer.render([asked], (), {})
    sampled = tokenizer.encode("A fox.<|im_end|>")
    trail = Trail(
        turn_id=UUID(int=1),
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        finish_reason=FinishReason.STOP,
    )
    extension = renderer.extend(trail, [more], [asked, said, more], (), {})
    assert extension.ids == renderer.render([asked, said, more], (), {})
    assert is_marked(extension.ids or [], [IMAGE, IMAGE], renderer.marks)
