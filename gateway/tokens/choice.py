"""Which renderer a model gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from gateway.errors import ConfigError, InvalidRequest
from gateway.records import Message
from gateway.tokens.renderer import Renderer
from gateway.tokens.template_renderer import TemplateRenderer
from gateway.tokens.tokenizer import Tokenizer

#: Families of the `renderers` package by the model's type, with a mark of the family's template:
#: a fine-tune may keep the architecture and bring a template of its own.
FAMILIES = {
    "qwen3": ("qwen3", "<tool_response>"),
    "qwen3_moe": ("qwen3", "<tool_response>"),
    "qwen3_5": ("qwen3.5", "<tool_response>"),
    "llama": ("llama-3", "<|start_header_id|>"),
    "glm4_moe": ("glm-4.5", "<|observation|>"),
    "gpt_oss": ("gpt-oss", "<|channel|>"),
    "deepseek_v3": ("deepseek-v3", "<\uff5cAssistant\uff5c>"),
    "kimi_k2": ("kimi-k2", "<|im_middle|>"),
    "minimax_m2": ("minimax-m2", "]~b]"),
}

_PROBES: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Ux1"},),
    ({"role": "system", "content": "Sx2"}, {"role": "user", "content": "Ux3"}),
    (
        {"role": "system", "content": "Sx4"},
        {"role": "user", "content": "Ux5"},
        {"role": "assistant", "content": "Ax6"},
        {"role": "user", "content": "Ux7"},
    ),
)


def make_renderer(
    name: str, tokenizer: Tokenizer, modalities: Sequence[str] | None = None
) -> Renderer:
    """The renderer that `model.renderer` asks for, and that renders the `modalities`.

    Where they are None, those of the model's files that its template has a place for.

    `template` is the model's own chat template, `FAMILY` or `FAMILY:RETENTION` one of the
    `renderers` package. `auto` takes the package's where it knows the model's family and renders
    some conversations exactly as the model's template does, otherwise the template, which alone
    renders images and audio.
    Raises ConfigError for a name that is not known or does not fit the model, and for modalities
    that cannot be rendered.
    """
    found = _chosen(name, tokenizer, modalities)
    if lacking := [kind for kind in modalities or () if kind not in found.marks]:
        raise ConfigError(
            f"model.modalities: the chat template has no place for {', '.join(lacking)}"
            if name in ("auto", "template")
            else f"model.modalities: the renderer {name} renders text alone"
        )
    return found


def _chosen(name: str, tokenizer: Tokenizer, modalities: Sequence[str] | None) -> Renderer:
    if name not in ("auto", "template"):
        return _named(name, tokenizer)
    kinds = tokenizer.facts.modalities if modalities is None else modalities
    template = TemplateRenderer(tokenizer, modalities=kinds)
    if name == "template" or template.marks:
        return template
    family, mark = FAMILIES.get(tokenizer.facts.model_type, ("", ""))
    if not family or mark not in tokenizer.chat_template:
        return template
    try:
        # The package brings the openai client with it: loaded only where it may serve.
        from gateway.tokens.library_renderer import LibraryRenderer

        library = LibraryRenderer(tokenizer, family)
        agree = all(
            library.render(probe, (), {}) == template.render(probe, (), {}) for probe in _PROBES
        )
    except (ConfigError, InvalidRequest):
        return template
    return library if agree else template


def _named(name: str, tokenizer: Tokenizer) -> Renderer:
    from gateway.tokens.library_renderer import LibraryRenderer

    family, _, retention = name.partition(":")
    if retention not in ("", "tool_cycle", "all"):
        raise ConfigError(f"model.renderer: {retention!r} is neither tool_cycle nor all")
    kept = cast('Literal["tool_cycle", "all"]', retention) if retention else None
    return LibraryRenderer(tokenizer, family, kept)
