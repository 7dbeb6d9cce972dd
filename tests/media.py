"""Small images and sounds, and a model directory that takes them: what a test shows a gateway."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tests.tiny_model import make_model

IMAGE_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
AUDIO_MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"

#: ChatML that writes marks for what is no text, as Qwen's image and audio models do.
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}
{{- message['content'] }}
{%- else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part['type'] == 'audio' %}
{{- '<|audio_bos|><|AUDIO|><|audio_eos|>' }}
{%- else %}
{{- part['text'] }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def png(red: int = 255, green: int = 0, blue: int = 0, *, side: int = 1) -> bytes:
    """A square of one colour, so many pixels a side."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([red, green, blue]) * side) * side)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def wav(*samples: int) -> bytes:
    """16-bit mono at 16 kHz."""
    data = struct.pack(f"<{len(samples)}h", *samples)
    form = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def text_of(raw: bytes) -> str:
    return b64encode(raw).decode()


def data_url(raw: bytes, type_: str = "image/png") -> str:
    return f"data:{type_};base64,{text_of(raw)}"


def make_seeing_model(directory: Path, template: str = TEMPLATE) -> Path:
    """The tiny model as if it took images and audio: its files say so. It cannot be run."""
    make_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    marks = [f"<|{name.strip('<|>')}|>" for name in (IMAGE_MARK + AUDIO_MARK).split("><")]
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    tokenizer.save(str(directory / "tokenizer.json"))
    path = directory / "config.json"
    config = json.loads(path.read_text()) | {
        "vocab_size": tokenizer.get_vocab_size(),
        "vision_config": {"hidden_size": 8},
    }
    path.write_text(json.dumps(config))
    feature_extractor = {"feature_extractor_type": "WhisperFeatureExtractor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(feature_extractor))
    (directory / "chat_template.jinja").write_text(template)
    return directory
