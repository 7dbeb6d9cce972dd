from __future__ import annotations

import pytest

from gateway.tokens.append_only import prove
from gateway.tokens.template import ChatTemplate
from tests.unit.chat_models import CHATML, COUNTING, LLAMA3, REASONING

ALTERNATING = """{% for message in messages %}
{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}
{{- '[' + message.role + ']' + message.content + '</s>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""
#: What follows tool results depends on the tools offered.
REMINDING = CHATML.replace(
    "{% if add_generation_prompt %}",
    "{% if tools %}{{ tools | length }} tools{% endif %}{% if add_generation_prompt %}",
)
PREFILLING = CHATML.replace(
    "<|im_start|>assistant\\n' }}{% endif %}",
    "<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}",
)
UNMARKED = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "roles", "tools", "thinking", "close", "reason"),
    [
        (CHATML, ("user",), False, False, "<|im_end|>\n", None),
        (CHATML, ("tool", "tool", "user"), True, False, "<|im_end|>\n", None),
        (CHATML, ("user",), False, True, "<|im_end|>\n", None),
        (LLAMA3, ("user",), False, False, "<|eot_id|>", None),
        (LLAMA3, ("tool",), True, False, "<|eot_id|>", None),
        (REASONING, ("user",), True, False, "<|im_end|>\n", None),
        (REASONING, ("tool",), True, True, "<|im_end|>\n", None),
        (REASONING, ("user",), True, True, "", "template_dropped_reasoning"),
        (REASONING, ("tool", "user"), True, True, "", "template_dropped_reasoning"),
        (PREFILLING, ("user",), False, False, "", "template_dropped_reasoning"),
        (COUNTING, ("user",), False, False, "", "template_not_append_only"),
        (REMINDING, ("user",), True, False, "", "template_not_append_only"),
        (ALTERNATING, ("user",), False, False, "</s>", None),
        (ALTERNATING, ("tool",), False, False, "", "template_not_append_only"),
        (UNMARKED, ("user",), False, False, "", "template_not_append_only"),
        ("{{ raise_exception('never') }}", ("user",), False, False, "", "template_not_append_only"),
    ],
)
def test_only_templates_that_append_are_proven(  # noqa: PLR0917 - pytest passes them by name
    template: str,
    roles: tuple[str, ...],
    tools: bool,
    thinking: bool,
    close: str,
    reason: str | None,
) -> None:
    compiled = ChatTemplate(template, {"bos_token": "<s>"})
    found = prove(compiled, roles, tools=tools, thinking=thinking, kwargs={})
    assert (found.close, found.reason) == (close, reason)


def test_tools_are_rendered_again_only_where_new_messages_show_them() -> None:
    head = ChatTemplate(REASONING, {})
    assert not prove(head, ("user",), tools=True, thinking=False, kwargs={}).tools_matter
    inside = CHATML.replace(
        "+ message['content'] +", "+ message['content'] + (tools | length | string) +"
    )
    shown = ChatTemplate(inside, {})
    assert prove(shown, ("user",), tools=True, thinking=False, kwargs={}).tools_matter
