"""Proof that a chat template only appends: what follows a reply never changes what precedes it.

A template is opaque code, so it is asked: several small conversations are rendered with and
without messages that follow, and the texts must be prefixes of one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequest
from gateway.records import Message
from gateway.tokens.formats import format_of
from gateway.tokens.template import ChatTemplate

_SAID = "Zq7"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What the template writes after a reply, if it only appends; otherwise `reason`.

    `close` ends the reply. `tools_matter` says whether the text of new messages depends on tools.
    """

    close: str = ""
    tools_matter: bool = True
    reason: str | None = None


def prove(
    template: ChatTemplate,
    roles: Sequence[str],
    *,
    tools: bool,
    thinking: bool,
    kwargs: Mapping[str, Any],
) -> Continuation:
    """Whether messages of these roles can be appended to a reply under this template.

    With `thinking` the replies hold reasoning, which some templates drop from older turns.
    """
    new = _new_messages(roles)
    offered = (_TOOL,) if tools else ()
    seen: set[tuple[str, str]] = set()
    bare: set[tuple[str, str] | None] = set()
    for history in _histories(roles, thinking=thinking, one_call=template.one_call):
        if not _renders(template, history[:-1], offered, kwargs):
            continue  # Some templates refuse a system message, and then no parent has one.
        try:
            found = _appended(template, history, new, offered, kwargs)
            without = _appended(template, history, new, (), kwargs) if tools else found
        except InvalidRequest:
            return Continuation(reason="template_not_append_only")
        if isinstance(found, Continuation):
            return found
        seen.add(found)
        bare.add(without if isinstance(without, tuple) else None)
    if len(seen) != 1:
        return Continuation(reason="template_not_append_only")
    [(close, _)] = seen
    return Continuation(close=close, tools_matter=bare != seen)


def _renders(
    template: ChatTemplate,
    messages: list[Message],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
) -> bool:
    try:
        template.render(messages, tools=tools, generate=True, kwargs=kwargs)
    except InvalidRequest:
        return False
    return True


def _appended(
    template: ChatTemplate,
    history: list[Message],
    new: list[Message],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
) -> tuple[str, str] | Continuation:
    """(what closes the reply, what the new messages add), or why nothing can be appended."""

    def text(messages: list[Message], *, generate: bool) -> str:
        adapted = [template.adapt(message) for message in messages]
        return template.render(adapted, tools=tools, generate=generate, kwargs=kwargs)

    opened = text(history[:-1], generate=True)
    said = text([*history[:-1], {"role": "assistant", "content": _SAID}], generate=False)
    closed = text(history, generate=False)
    full = text(history + new, generate=True)
    close = said[said.rindex(_SAID) + len(_SAID) :] if _SAID in said else ""
    if "tool_calls" in history[-1] and not closed.endswith(close):
        # The call itself ends the reply, and what ends another does not.
        ends = format_of(template.source).one_call_stops
        close = next((end for end in ends if closed.endswith(end)), close)
    if closed.startswith(opened) and full.startswith(closed) and closed.endswith(close) and close:
        return close, full[len(closed) :]
    dropped = "</think>" in opened or ("</think>" in closed and "</think>" not in full)
    return Continuation(
        reason="template_dropped_reasoning" if dropped else "template_not_append_only"
    )


def _histories(roles: Sequence[str], *, thinking: bool, one_call: bool) -> list[list[Message]]:
    system = {"role": "system", "content": "Sx1"}
    user = {"role": "user", "content": "Ux2"}
    content = f"<think>\nTx3\n</think>\n\n{_SAID}" if thinking else _SAID
    reply: dict[str, Any] = {"role": "assistant", "content": content}
    if count := _leading_tools(roles):
        reply["tool_calls"] = [
            {
                "id": _call_id(index),
                "type": "function",
                "function": {"name": "probe", "arguments": '{"x": "1"}'},
            }
            for index in range(1 if one_call else count)
        ]
    earlier = {"role": "assistant", "content": "Ax4"}
    return [[user, reply], [system, user, reply], [system, user, earlier, user, reply]]


def _new_messages(roles: Sequence[str]) -> list[Message]:
    return [
        {"role": role, "content": f"Nx{index}", "name": "probe", "tool_call_id": _call_id(index)}
        if role == "tool"
        else {"role": role, "content": f"Nx{index}"}
        for index, role in enumerate(roles)
    ]


def _leading_tools(roles: Sequence[str]) -> int:
    return next((n for n, role in enumerate(roles) if role != "tool"), len(roles))


def _call_id(index: int) -> str:
    # Nine letters and digits: the only form that Mistral's templates accept.
    return f"call{index:05d}"
