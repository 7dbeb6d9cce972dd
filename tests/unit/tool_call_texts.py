"""Tool calls as models of each form write them."""

from __future__ import annotations

from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "deep": {"type": "object"},
        "unit": {"enum": ["C", "F"]},
        "note": {"type": ["string", "null"]},
    },
}
SCHEMAS = {"look": SCHEMA, "feed": SCHEMA}


def deepseek(text: str) -> str:
    """Its tokens have a wide bar and a block where others have a bar and an underscore."""
    return text.replace("|", "\uff5c").replace("_", "\u2581")


DEEPSEEK = deepseek("<|tool_calls_begin|>{}<|tool_calls_end|>")


def _dsml(calls: str) -> tuple[str, str, str, str]:
    token = "\uff5cDSML\uff5c"
    return (
        (f'<{token}invoke name="look">\n'
        f'<{token}parameter name="city" string="true">Oslo</{token}parameter>\n'
        f'<{token}parameter name="days" string="false">3</{token}parameter>\n'
        f"</{token}invoke>"),
        f'<{token}invoke name="feed">\n</{token}invoke>',
        "\n",
        f"<{token}{calls}>\n{{}}\n</{token}{calls}>",
    )  # fmt: skip


def _hunyuan(suffix: str) -> tuple[str, str, str, str]:
    look = (
        "<tool_call>look<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    )
    feed = "<tool_call>feed<tool_sep>\n</tool_call>"
    around = "<tool_calls>\n{}\n</tool_calls>"
    written = (one.replace(">", suffix + ">") for one in (look, feed, around))
    return next(written), next(written), "\n", next(written)


#: One call of `look` in Oslo for 3 days, and two calls, as models of each form write them.
ONE = '{"city": "Oslo", "days": 3}'
WRITTEN = {
    "hermes": (
        '<tool_call>\n{"name": "look", "arguments": JSON}\n</tool_call>',
        '<tool_call>\n{"name": "feed", "arguments": {}}\n</tool_call>',
        "\n",
        "{}",
    ),
    "llama3": (
        '{"name": "look", "parameters": JSON}',
        '{"name": "feed", "parameters": {}}',
        "; ",
        "{}",
    ),
    "mistral": ("[TOOL_CALLS]look[ARGS]JSON", "[TOOL_CALLS]feed[ARGS]{}", "", "{}"),
    "mistral_list": (
        '{"name": "look", "arguments": JSON}',
        '{"name": "feed", "arguments": {}}',
        ", ",
        "[TOOL_CALLS] [{}]",
    ),
    "deepseek_v3": (
        deepseek("<|tool_call_begin|>function<|tool_sep|>look\n```json\nJSON\n```<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>function<|tool_sep|>feed\n```json\n{}\n```<|tool_call_end|>"),
        "\n",
        DEEPSEEK,
    ),
    "deepseek_v31": (
        deepseek("<|tool_call_begin|>look<|tool_sep|>JSON<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>feed<|tool_sep|>{}<|tool_call_end|>"),
        "",
        DEEPSEEK,
    ),
    "kimi_k2": (
        "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>JSON<|tool_call_end|>",
        "<|tool_call_begin|>functions.feed:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "",
        "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
    ),
    "harmony": (
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>JSON<|call|>",
        "<|channel|>commentary to=functions.feed <|constrain|>json<|message|>{}<|call|>",
        "<|start|>assistant",
        "{}",
    ),
    "qwen_coder": (
        ("<tool_call>\n<function=look>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
        "<tool_call>\n<function=feed>\n</function>\n</tool_call>",
        "\n",
        "{}",
    ),
    "glm": (
        ("<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
        "<tool_call>feed\n</tool_call>",
        "\n",
        "{}",
    ),
    "minimax_m2": (
        ('<invoke name="look">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>'),
        '<invoke name="feed">\n</invoke>',
        "\n",
        "<minimax:tool_call>\n{}\n</minimax:tool_call>",
    ),
    "dsml_v32": _dsml("function_calls"),
    "dsml_v4": _dsml("tool_calls"),
    "gemma4": (
        '<|tool_call>call:look{city:<|"|>Oslo<|"|>,days:3}<tool_call|>',
        "<|tool_call>call:feed{}<tool_call|>",
        "",
        "{}",
    ),
    "hy3": _hunyuan(":opensource"),
    "hy3_preview": _hunyuan(""),
    "inkling": (
        'look<|content_invoke_tool_json|>{"name":"look","args":JSON}<|end_message|>',
        'feed<|content_invoke_tool_json|>{"name":"feed","args":{}}<|end_message|>',
        "<|message_model|>",
        "{}",
    ),
}  # fmt: skip


def look(name: str) -> str:
    return WRITTEN[name][0].replace("JSON", ONE)


def both(name: str) -> str:
    _, feed, separator, around = WRITTEN[name]
    return around.replace("{}", look(name) + separator + feed)
