"""The ways in which models write tool calls: one registry, a family of forms a file."""

from gateway.tokens.formats.base import (
    THINK,
    CallFormat,
    CallReader,
    ChannelFormat,
    Schemas,
    Tag,
    Taken,
    Thought,
)
from gateway.tokens.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from gateway.tokens.formats.dsml import DSML_V4, DSML_V32
from gateway.tokens.formats.gemma4 import GEMMA4
from gateway.tokens.formats.glm import GLM
from gateway.tokens.formats.harmony import HARMONY
from gateway.tokens.formats.hermes import HERMES
from gateway.tokens.formats.hunyuan import HY3, HY3_PREVIEW
from gateway.tokens.formats.inkling import INKLING
from gateway.tokens.formats.kimi import KIMI_K2
from gateway.tokens.formats.llama3 import LLAMA3
from gateway.tokens.formats.minimax import MINIMAX_M2
from gateway.tokens.formats.mistral import MISTRAL, MISTRAL_LIST
from gateway.tokens.formats.qwen_coder import QWEN_CODER

#: In the order in which they are looked for: what is found in other forms' templates comes last.
FORMATS: tuple[CallFormat, ...] = (
    QWEN_CODER,
    HY3,
    HY3_PREVIEW,
    GLM,
    MINIMAX_M2,
    KIMI_K2,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DSML_V32,
    DSML_V4,
    GEMMA4,
    INKLING,
    HARMONY,
    HERMES,
    MISTRAL,
    MISTRAL_LIST,
    LLAMA3,
)


def format_of(template: str) -> CallFormat:
    """The form that a chat template asks for; Hermes where it says nothing of calls."""
    return next((form for form in FORMATS if form.fits(template)), HERMES)


__all__ = [
    "FORMATS",
    "HERMES",
    "THINK",
    "CallFormat",
    "CallReader",
    "ChannelFormat",
    "Schemas",
    "Tag",
    "Taken",
    "Thought",
    "format_of",
]
