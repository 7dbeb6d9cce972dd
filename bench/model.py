"""The model that the gateway believes to serve: a tokenizer of real size, a template with tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gateway.local.model import ensure_model

NAME = "bench"
CONTEXT = 131_072
STOP = "<|im_end|>"

#: ChatML with Hermes tool calls, as agents' models have it.
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\nCall one with a JSON object of name and arguments in <tool_call></tool_call>.' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] != 'system' or not tools %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{%- for call in message['tool_calls'] or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
{{- (call['function']['arguments'] | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_model(directory: Path) -> Path:
    """SmolLM2's tokenizer in a directory without weights. Raises what `ensure_model` raises."""
    source = ensure_model()
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(source / name, directory / name)
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
