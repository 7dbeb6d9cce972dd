"""Which tokens end a reply, by the chat template: some models' own files name fewer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.errors import ConfigError, InvalidRequest
from gateway.tokens.formats import format_of
from gateway.tokens.template import ChatTemplate

_SAID = "Zq7"
_ASKED = {"role": "user", "content": "Ux1"}
#: What a model ends with in some replies, though its template writes the other.
_ALSO = {
    "<|eot_id|>": ("<|eom_id|>",),
    "<|return|>": ("<|call|>",),
    "<turn|>": ("<|tool_response>",),
}


def reply_ends(
    source: str, special_tokens: Mapping[str, str], special: Collection[str]
) -> tuple[str, ...]:
    """The special token that the template writes right after a reply, and what stands for it."""
    try:
        template = ChatTemplate(source, special_tokens)
        told = [_ASKED, {"role": "assistant", "content": _SAID}]
        text = template.render(told, generate=False, kwargs={})
    except (ConfigError, InvalidRequest):
        return ()
    _, said, closing = text.rpartition(_SAID)
    closing = closing.lstrip() if said else ""
    # Where a reply is several messages, the end of one is not its own.
    channels = format_of(source).untooled
    for end in channels.ends if channels else ():
        closing = closing.removeprefix(end).lstrip()
    end = max(
        (token for token in special if token and closing.startswith(token)), key=len, default=""
    )
    return (end, *_ALSO.get(end, ())) if end else ()
