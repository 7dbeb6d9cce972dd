from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.errors import ConfigError, InvalidRequest
from gateway.tokens.template import ChatTemplate, for_template

MESSAGES = [{"role": "user", "content": "a <b> é"}]


def render(source: str, messages: list[dict[str, object]] = MESSAGES, **kwargs: object) -> str:
    template = ChatTemplate(
        source, {"bos_token": "<s>"}, now=lambda: datetime(2026, 3, 4, tzinfo=UTC)
    )
    return template.render(messages, generate=True, kwargs=kwargs)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>a <b> é"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "a <b> é"}]'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "a <b> é"\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{% if tools %}x{% else %}none{% endif %}", "none"),
        ("{% if documents is none %}none{% endif %}", "none"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("  {% if true %}\nx{% endif %}", "x"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ enable_thinking }}", "False"),
    ],
)
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert render(source, enable_thinking=False) == text


def test_a_templates_refusal_is_the_clients_error() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
    ],
)
def test_templates_are_sandboxed(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


def test_a_template_that_is_no_jinja_is_the_operators_error() -> None:
    with pytest.raises(ConfigError, match="cannot be compiled"):
        ChatTemplate("{% if %}", {})


def test_deep_nesting_is_refused() -> None:
    deep: object = "x"
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        render("{{ messages | tojson }}", [{"role": "user", "content": deep}])


def test_messages_take_the_form_that_templates_read() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    bad = {"id": "d", "type": "function", "function": {"name": "g", "arguments": "[1"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, bad], "extra": 1}
    adapted = for_template(message)
    assert adapted["content"] == ""
    assert adapted["extra"] == 1
    assert adapted["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert adapted["tool_calls"][1]["function"] == {"name": "g", "arguments": "[1"}
    assert call["function"]["arguments"] == '{"a": 1}'
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert for_template({"role": "developer", "content": parts}) == {
        "role": "system",
        "content": "ab",
    }
    assert "tool_calls" not in for_template({"role": "assistant", "tool_calls": []})


def test_a_conversation_takes_that_form_whether_or_not_its_messages_have_it_already() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", {})
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": "b", "name": "n"},
        {"role": "assistant", "content": "c", "tool_calls": []},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "d"}]},
        {"role": "user"},
    ]
    assert template.adapt_all(messages) == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b", "name": "n"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "d"},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("call.function.arguments | tojson", '{"a": 1}'),
        ("'<' + call.function.arguments + '>'", '<{"a":1}>'),
    ],
)
def test_arguments_come_as_the_template_takes_them(shown: str, text: str) -> None:
    source = "{% for m in messages %}{% for call in m.tool_calls %}{{ " + shown + " }}{% endfor %}"
    template = ChatTemplate(source + "{% endfor %}", {})
    function = {"name": "f", "arguments": '{"a":1}'}
    call = {"id": "c", "type": "function", "function": function}
    message = template.adapt({"role": "assistant", "content": None, "tool_calls": [call]})
    assert template.render([message], generate=True, kwargs={}) == text
