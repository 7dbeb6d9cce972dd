"""Every family of the `renderers` package: its tokens, and how its models write calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.tokens import tokenizer as ours


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFamily:
    """`form` is the name of the form of its calls, `ends` are the tokens that end a reply.

    `thinks` says that a prompt keeps the reasoning of a reply that awaits results, with these
    `kwargs` of the template.
    """

    form: str
    tokens: tuple[str, ...]
    ends: tuple[str, ...]
    thinks: bool = True
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def _deepseek(text: str) -> tuple[str, ...]:
    return tuple(text.replace("|", "\uff5c").replace("_", "\u2581").split())


_THINK, _CALL = ("<think>", "</think>"), ("<tool_call>", "</tool_call>")
_ON = {"enable_thinking": True}

_CHATML = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", *_THINK, *_CALL,
    "<tool_response>", "</tool_response>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<image>",
)  # fmt: skip
_GLM = (
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<|endoftext|>", *_THINK, *_CALL, "<tool_response>", "</tool_response>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
_KIMI = (
    "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
    "<|endoftext|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
)  # fmt: skip
_LAGUNA = ("\u3008|EOS|\u3009", *_THINK, *_CALL, "<assistant>", "</assistant>")
_DEEPSEEK = (
    *_deepseek(
        "<|begin_of_sentence|> <|end_of_sentence|> <|User|> <|Assistant|> <|tool_calls_begin|> "
        "<|tool_calls_end|> <|tool_call_begin|> <|tool_call_end|> <|tool_sep|> "
        "<|tool_outputs_begin|> <|tool_outputs_end|> <|tool_output_begin|> <|tool_output_end|>"
    ),
    *_THINK,
)
_DEEPSEEK_END = _deepseek("<|end_of_sentence|>")
_DSML = (
    *_DEEPSEEK_END,
    *_deepseek("<|begin_of_sentence|> <|User|> <|Assistant|>"),
    *(
        f"{before}\uff5c{name}\uff5c{after}"
        for before, name, after in (
            ("<", "latest_reminder", ">"), ("", "DSML", ""), ("<", "action", ">"),
            ("<", "query", ">"), ("<", "authority", ">"), ("<", "domain", ">"),
            ("<", "title", ">"), ("<", "read_url", ">"),
        )
    ),
    *_THINK,
)  # fmt: skip
_GEMMA = (
    "<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>",
    "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|image>",
    "<|image|>", "<image|>", '<|"|>',
)  # fmt: skip
_HY3 = tuple(
    name.replace("@", ":opensource").replace("|", "\uff5c")
    for name in (
        "<|hy_begin_of_sentence@|>", "<|hy_eos@|>", "<|hy_User@|>", "<|hy_Assistant@|>",
        "<|reasoning_mode@|>", "<think@>", "</think@>", "<tool_calls@>", "</tool_calls@>",
        "<tool_call@>", "</tool_call@>", "<tool_sep@>", "<arg_key@>", "</arg_key@>",
        "<arg_value@>", "</arg_value@>", "<tool_responses@>", "</tool_responses@>",
        "<tool_response@>", "</tool_response@>",
    )
)  # fmt: skip
_INKLING = (
    "<|message_user|>", "<|message_model|>", "<|message_system|>", "<|message_tool|>",
    "<|content_text|>", "<|content_thinking|>", "<|content_image|>", "<|content_audio_input|>",
    "<|content_xml|>", "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>",
    "<|content_model_end_sampling|>", "<|end_message|>", "<|audio_end|>", "<|unused_200054|>",
    "<|unused_200053|>", "<|endoftext|>",
)  # fmt: skip
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
_MINIMAX = ("]~!b[", "]~b]", "[e~[", *_THINK, "<minimax:tool_call>", "</minimax:tool_call>")

_QWEN = LibraryFamily(form="qwen_coder", tokens=_CHATML, ends=("<|im_end|>",))
_GLM_FAMILY = LibraryFamily(
    form="glm", tokens=_GLM, ends=("<|user|>", "<|observation|>"), kwargs=_ON
)
_LAGUNA_FAMILY = LibraryFamily(form="glm", tokens=_LAGUNA, ends=("</assistant>",), kwargs=_ON)

LIBRARY = {
    "deepseek-r1": LibraryFamily(form="deepseek_v3", tokens=_DEEPSEEK, ends=_DEEPSEEK_END),
    "deepseek-v3": LibraryFamily(
        form="deepseek_v3", tokens=_DEEPSEEK, ends=_DEEPSEEK_END, thinks=False
    ),
    "deepseek-v4": LibraryFamily(form="dsml_v4", tokens=_DSML, ends=_DEEPSEEK_END, kwargs=_ON),
    "gemma4": LibraryFamily(
        form="gemma4", tokens=_GEMMA, ends=("<turn|>", "<|tool_response>"), kwargs=_ON
    ),
    "glm-4.5": _GLM_FAMILY,
    "glm-5": _GLM_FAMILY,
    "glm-5.1": _GLM_FAMILY,
    "glm-5.3": _GLM_FAMILY,
    "hy3": LibraryFamily(
        form="hy3",
        tokens=_HY3,
        ends=("<\uff5chy_eos:opensource\uff5c>",),
        kwargs={"reasoning_effort": "high"},
    ),
    "inkling": LibraryFamily(
        form="inkling", tokens=_INKLING, ends=("<|content_model_end_sampling|>",)
    ),
    "kimi-k2": LibraryFamily(form="kimi_k2", tokens=_KIMI, ends=("<|im_end|>",), thinks=False),
    "kimi-k2.5": LibraryFamily(form="kimi_k2", tokens=(*_KIMI, *_THINK), ends=("<|im_end|>",)),
    "laguna-m.1": _LAGUNA_FAMILY,
    "laguna-s-2.1": _LAGUNA_FAMILY,
    "laguna-xs-2.1": _LAGUNA_FAMILY,
    "laguna-xs.2": _LAGUNA_FAMILY,
    "llama-3": LibraryFamily(form="llama3", tokens=_LLAMA, ends=("<|eot_id|>",), thinks=False),
    "minimax-m2": LibraryFamily(form="minimax_m2", tokens=_MINIMAX, ends=("[e~[",)),
    "nemotron-3": _QWEN,
    "nemotron-3-ultra": _QWEN,
    "nemotron-3.5": _QWEN,
    "prime-qwen3": LibraryFamily(
        form="qwen_coder", tokens=_CHATML, ends=("<|im_end|>",), thinks=False
    ),
    "qwen3": LibraryFamily(form="hermes", tokens=_CHATML, ends=("<|im_end|>",)),
    "qwen3-vl": LibraryFamily(form="hermes", tokens=_CHATML, ends=("<|im_end|>",), thinks=False),
    "qwen3.5": _QWEN,
    "qwen3.6": _QWEN,
    "qwen3.8": _QWEN,
}

#: Its renderer fetches OpenAI's vocabulary from the network before it does anything.
HARMONY = LibraryFamily(
    form="harmony",
    tokens=(
        "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>",
        "<|return|>",
    ),
    ends=("<|return|>",),
)  # fmt: skip


def tokenizer_of(family: LibraryFamily) -> ours.Tokenizer:
    """Bytes and the family's tokens, each of them special: what is read of a reply is all named."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    added = [AddedToken(token, normalized=False, special=True) for token in family.tokens]
    backend.add_special_tokens(added)
    ends = tuple(backend.token_to_id(token) for token in family.ends)
    facts = ours.ModelFacts(
        model_type="x", vocab_size=512, context_length=4096, stop_token_ids=ends
    )
    return ours.Tokenizer(backend, facts=facts, chat_template="", special_tokens={})
