"""What the next state of a turn is: everything that followed its reply."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.records import Message, Resolution, TurnRequest, is_remark


def next_state_of(
    request: TurnRequest, resolution: Resolution, *, beside: bool = False
) -> tuple[tuple[Message, ...], str] | None:
    """(every message that followed the parent's reply, who spoke), or None if nothing did.

    All tool results count, not the last one. A person's word among them makes the role `user`.
    Messages after a reply that is not ours do not follow from the parent, and what an agent
    remarks for the model alone is no word of a person's. Of a call `beside` the parent's line only
    the results of tools count, since the rest is the agent's own prompt.
    """
    if resolution.parent is None:
        return None
    return told(request.messages[resolution.new_from :], beside=beside)


def told(
    messages: Sequence[Message], *, beside: bool = False
) -> tuple[tuple[Message, ...], str] | None:
    """The same of the messages that were new in a request."""
    following = _up_to_reply(messages)
    if beside:
        following = tuple(message for message in following if message["role"] == "tool")
    spoken = [message["role"] for message in following if not is_remark(message)]
    if not spoken:
        return None
    role = next((role for role in ("user", "tool") if role in spoken), spoken[0])
    return following, role


def _up_to_reply(messages: Sequence[Message]) -> tuple[Message, ...]:
    roles = [message["role"] for message in messages]
    end = roles.index("assistant") if "assistant" in roles else len(roles)
    return tuple(messages[:end])
