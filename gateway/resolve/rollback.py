"""Whether a request discards a reply: its user went back behind it and said something else.

The branch is itself a signal for the turn that was left behind. Told apart from it are what only
looks alike: a reply asked for once more with nothing changed, groups of equal requests that are
sampled on purpose, calls beside the line by another agent, requests under way at once (the other
turn is not stored yet), and equal conversations of several users (marked ambiguous, or continued
where one of them is free).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.records import Message, Resolution, TurnRequest, is_remark
from gateway.resolve.chain import HALF, chain, head_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The newest main-line turn of a session, seen from an ancestor that a request extends.

    `asked` are the messages that stood after the ancestor's reply on the way to it, `followed`
    whether anything came after it, `siblings` how many other replies the same request got.
    """

    turn_id: UUID
    asked: tuple[Message, ...]
    tools_hash: bytes
    followed: bool = False
    delivered: bool = True
    siblings: int = 0


def may_roll_back(request: TurnRequest, resolution: Resolution) -> bool:
    """Whether a request branches off as one that discards a reply does, as far as it tells."""
    parent = resolution.parent
    if parent is None or not parent.continued or resolution.ambiguous:
        return False
    new = request.messages[resolution.new_from :]
    roles = [message["role"] for message in new if not is_remark(message)]
    return "user" in roles and "assistant" not in roles


def rolled_back(request: TurnRequest, resolution: Resolution, leaf: Leaf) -> bool:
    """Whether the reply of `leaf` was discarded by a request that branches off before it."""
    if leaf.followed or leaf.siblings or not leaf.delivered:
        return False
    if _said(request.messages[resolution.new_from :]) == _said(leaf.asked):
        return False
    parent = resolution.parent
    assert parent is not None
    head = head_hash(request.messages, request.tools, request.hash_key)
    if leaf.tools_hash[HALF:] != head[HALF:]:
        return False
    # A system prompt with the clock in it differs each time; where two of the three are equal and
    # the leaf's and the request's are not, one of them is another agent's over the same history.
    before, left, now = parent.tools_hash[:HALF], leaf.tools_hash[:HALF], head[:HALF]
    return left == now or before not in (left, now)


def _said(messages: Sequence[Message]) -> bytes:
    """What people and tools said, without the agent's own remarks and prompts."""
    hashes = chain(messages, b"")
    return hashes[-1] if hashes else b""
