"""Prompts that were put behind a conversation's history and not gone on from.

Chat interfaces ask over the same history for follow-ups, titles or queries. Such a prompt looks
like the next turn until the conversation goes on from the reply before it. It is told from words
that a user took back by its instructions or tools, which the conversation before and after does
not have, by its being held already, or by its having been put the same way before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from gateway.records import Candidate, Resolution, TurnKind, TurnRequest
from gateway.resolve.chain import HALF, head_hash
from gateway.resolve.exchanges import squeezed
from gateway.resolve.voices import Voices

#: Bytes of letters; what is shorter is said by everybody.
_SHORTEST = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A turn that extends the same reply as a request; `followed` if anything came after it."""

    turn_id: UUID
    kind: TurnKind
    tools_hash: bytes
    delivered: bool = True
    followed: bool = False


def words_key(voices: Voices, start: bytes) -> str | None:
    """The key of what was said last over a history; None for a first, short or other word."""
    if not voices.replies or not voices.asks:
        return None
    words = squeezed(voices.words[-1])
    return _key(start, words) if len(words) >= _SHORTEST else None


def instructions_key(head: bytes, start: bytes) -> str:
    """The key of instructions and tools that were not those of the turn before; `head_hash`."""
    return _key(start, b"\0" + head)


def put_before(keys: Iterable[str], candidates: Iterable[Candidate], parent: Candidate) -> bool:
    """Whether the same was asked beside another conversation, or earlier in this one.

    What is also said on main lines that went on is what people say, and no sign.
    """
    wanted = set(keys)
    known = [turn for turn in candidates if turn.echo in wanted and turn.turn_id != parent.turn_id]
    if not known or any(turn.continued and turn.kind is TurnKind.MAIN for turn in known):
        return False
    return any(turn.kind is TurnKind.SIDE or _left(turn, parent) for turn in known)


def left_before(
    keys: Iterable[str], candidates: Iterable[Candidate], parent: Candidate
) -> Candidate | None:
    """The turn beside `parent`, after the same reply, in which the same was asked and left."""
    wanted = set(keys)
    return next(
        (
            turn
            for turn in candidates
            if turn.echo in wanted
            and turn.kind is not TurnKind.SIDE
            and turn.parent_id == parent.parent_id
            and _left(turn, parent)
        ),
        None,
    )


def is_beside(request: TurnRequest, resolution: Resolution, branches: Iterable[Branch]) -> bool:
    """Whether a request is the prompt beside the line, and a branch that was there before it.

    That one has the instructions and tools of the turn before, and the request has others.
    """
    parent = resolution.parent
    assert parent is not None
    head = head_hash(request.messages, request.tools, request.hash_key)
    return head != parent.tools_hash and any(
        branch.kind is TurnKind.MAIN and branch.delivered and branch.tools_hash == parent.tools_hash
        for branch in branches
    )


def beside(
    request: TurnRequest, resolution: Resolution, branches: Iterable[Branch]
) -> tuple[UUID, ...]:
    """Those branches that were beside the line which a main-line request now goes on with."""
    parent = resolution.parent
    assert parent is not None
    head = head_hash(request.messages, request.tools, request.hash_key)
    halves = (slice(0, HALF), slice(HALF, None))
    return tuple(
        branch.turn_id
        for branch in branches
        if not branch.followed
        and branch.kind is not TurnKind.SIDE
        and (
            branch.kind is TurnKind.UNKNOWN
            or any(
                head[half] == parent.tools_hash[half] != branch.tools_hash[half] for half in halves
            )
        )
    )


def given_up(branches: Iterable[Branch]) -> tuple[UUID, ...]:
    """Those whose client did not wait for the reply: nothing of them followed anything."""
    return tuple(b.turn_id for b in branches if not b.delivered and not b.followed)


def _left(turn: Candidate, parent: Candidate) -> bool:
    """Whether a turn of the same session was never gone on from, but not for want of a reply."""
    return (
        turn.session_id == parent.session_id
        and not turn.continued
        and turn.delivered
        and turn.parent_id not in (None, parent.turn_id)
        and turn.request_hash != parent.request_hash
    )


def _key(start: bytes, what: bytes) -> str:
    return f"^{sha256(start + what).hexdigest()[:32]}"
