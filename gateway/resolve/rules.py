"""The decision: of the stored turns that were found for a request, which one it continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from msgspec.structs import replace

from gateway.records import (
    Candidate,
    FinishReason,
    Message,
    Resolution,
    TurnKind,
    TurnRequest,
    holds_reply,
)
from gateway.resolve.beside import put_before
from gateway.resolve.chain import HALF, Prefix, head_hash, is_apart
from gateway.resolve.echoes import Echo, EchoKind
from gateway.resolve.links import about, called


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSession:
    """The session that a client named; `id` None if nothing is stored under that name yet.

    `compacted`: its last turn was the summary that takes the place of its history.
    """

    id: UUID | None
    turns: int = 0
    has_tools: bool = False
    compacted: bool = False


class _Rank(IntEnum):
    """How a turn was found; of two that reach equally deep, the higher counts."""

    REPLY = 0
    OUTLINE = 1
    PREFIX = 2
    ECHO = 3
    PREVIOUS = 4


_RULES = {rank: rank.name.lower() for rank in _Rank}
_RANKS = {
    EchoKind.REPLY: _Rank.REPLY,
    EchoKind.OUTLINE: _Rank.OUTLINE,
    EchoKind.CALL: _Rank.ECHO,
}
#: A reply that so many turns have is anybody's.
_COMMON = 8


@dataclass(frozen=True, slots=True)
class _Match:
    """A stored turn whose reply ends the first `depth` messages of the request."""

    depth: int
    rank: _Rank
    turn: Candidate


def resolve(
    request: TurnRequest,
    *,
    found: Sequence[Prefix],
    named: NamedSession | None,
    candidates: Sequence[Candidate],
    echoes: Sequence[Echo] = (),
    retry: Candidate | None = None,
    head: bytes | None = None,
) -> Resolution:
    """Session and parent of a request.

    `found` are the request's prefixes, `echoes` its keys and `head` its `head_hash`; `candidates`
    are the stored turns with one of them, `named` is the session the client named, if it did: then
    only turns inside it can be parents. The deepest match counts; of several, one that is not
    continued yet, and if all are, nothing tells their users apart and a new session begins, marked
    ambiguous. `retry` is the turn that is asked for again: its place is the request's.
    """
    if not candidates and retry is None:
        return _root(request, named, ())
    if head is None:
        head = head_hash(request.messages, request.tools, request.hash_key)
    counts = {prefix.hash: prefix.message_count for prefix in found}
    matches = _matches(request, counts, echoes, candidates)
    inside = matches
    if named is not None:
        inside = [m for m in matches if m.turn.session_id == named.id]
    if retry is not None:
        return _again(request, retry, inside, counts, head)
    for depth, rank in sorted({(m.depth, m.rank) for m in inside}, reverse=True):
        closest = [m.turn for m in inside if (m.depth, m.rank) == (depth, rank)]
        if rank <= _Rank.OUTLINE and len({turn.session_id for turn in closest}) > 1:
            continue
        if rank is _Rank.REPLY and len(closest) >= _COMMON:
            continue
        resolution = _continued(
            request, closest, depth, rank, counts=counts, head=head, named=named
        )
        return _asked_before(resolution, echoes, candidates, head)
    root = _root(request, named, matches)
    if root.session_id is not None:
        return root
    root = called(root, echoes, candidates, head)
    return root if root.called or named is not None else about(root, echoes, candidates)


def _matches(
    request: TurnRequest,
    counts: dict[bytes, int],
    echoes: Iterable[Echo],
    candidates: Iterable[Candidate],
) -> list[_Match]:
    keys = {echo.key: echo for echo in echoes if echo.kind in _RANKS}
    previous = request.previous_turn
    # By the number of an id: a UUID hashes and compares in Python, and many turns may be found.
    best: dict[int, _Match] = {}
    for turn in candidates:
        if request.user is not None and turn.user not in (None, request.user):
            continue
        depth = counts.get(turn.chain_hash, 0)
        rank = _Rank.PREFIX
        echo = keys.get(turn.echo) if turn.echo is not None else None
        if previous is not None and turn.turn_id == previous:
            depth, rank = depth or _last_reply(request.messages), _Rank.PREVIOUS
        elif echo is not None and (echo.kind is EchoKind.CALL or echo.message_count > depth):
            depth, rank = echo.message_count, _RANKS[echo.kind]
        if rank is _Rank.REPLY and turn.kind is TurnKind.SIDE:
            # A summary that stands as a reply in the history it began.
            continue
        if not depth:
            continue
        known = best.get(turn.turn_id.int)
        if known is None or (known.depth, known.rank) < (depth, rank):
            best[turn.turn_id.int] = _Match(depth, rank, turn)
    return list(best.values())


def _continued(
    request: TurnRequest,
    closest: Sequence[Candidate],
    depth: int,
    rank: _Rank,
    *,
    counts: dict[bytes, int],
    head: bytes,
    named: NamedSession | None = None,
) -> Resolution:
    if any(map(is_apart, request.messages[depth:])):
        head = head_hash(request.messages[:depth], request.tools, request.hash_key)
    closest = [turn for turn in closest if turn.tools_hash == head] or closest
    fresh = [turn for turn in closest if not turn.continued]
    if not fresh and len(closest) > 1 and named is None:
        return Resolution(
            session_id=None,
            parent=None,
            rule="ambiguous_prefix",
            branch_reason="ambiguous",
            ambiguous=True,
        )
    parent = _latest(fresh or closest)
    rule = _RULES[rank] if fresh else f"{_RULES[rank]}_branch"
    exact = counts.get(parent.chain_hash) == depth
    return Resolution(
        session_id=parent.session_id,
        parent=parent,
        rule=rule if named is None else f"named_{rule}",
        new_from=depth,
        branch_reason=_branch_reason(request.messages[depth:], parent, head, exact=exact),
        ambiguous=len(fresh or closest) > 1,
        beside_tools=named is not None and named.has_tools,
    )


def _asked_before(
    found: Resolution, echoes: Iterable[Echo], candidates: Sequence[Candidate], head: bytes
) -> Resolution:
    """Instructions say something only where they are not those of the turn before."""
    parent = found.parent
    if parent is None:
        return found
    telling = [EchoKind.WORDS]
    if head != parent.tools_hash:
        telling.append(EchoKind.INSTRUCTIONS)
    wanted = [echo.key for echo in echoes if echo.kind in telling]
    return replace(found, beside=True) if put_before(wanted, candidates, parent) else found


def _again(
    request: TurnRequest,
    retry: Candidate,
    inside: Sequence[_Match],
    counts: dict[bytes, int],
    head: bytes,
) -> Resolution:
    match = next((m for m in inside if m.turn.turn_id == retry.parent_id), None)
    if match is None:
        return Resolution(session_id=retry.session_id, parent=None, rule="retry")
    found = _continued(request, [match.turn], match.depth, match.rank, counts=counts, head=head)
    return replace(found, rule="retry")


def _root(
    request: TurnRequest, named: NamedSession | None, matches: Sequence[_Match]
) -> Resolution:
    if named is None:
        return Resolution(session_id=None, parent=None, rule="new")
    reason = None
    origins = {m.turn.session_id for m in matches if m.rank > _Rank.OUTLINE}
    if named.id is None and len(origins) == 1:
        return Resolution(
            session_id=None,
            parent=None,
            rule="named_fork",
            branch_reason="forked",
            parent_session_id=origins.pop(),
        )
    if named.turns:
        reason = "history_edited" if holds_reply(request.messages) else "new_root"
        reason = "compacted" if named.compacted else reason
    return Resolution(
        session_id=named.id,
        parent=None,
        rule="named",
        branch_reason=reason,
        beside_tools=named.has_tools,
    )


def _branch_reason(
    new: Sequence[Message], parent: Candidate, head: bytes, *, exact: bool
) -> str | None:
    if not exact or holds_reply(new):
        return "history_edited"
    if parent.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT):
        return "parent_truncated"
    if parent.tools_hash[:HALF] != head[:HALF]:
        return "system_changed"
    return "tools_changed" if parent.tools_hash[HALF:] != head[HALF:] else None


def _latest(turns: Sequence[Candidate]) -> Candidate:
    if len(turns) == 1:
        return turns[0]
    return max(turns, key=lambda turn: (turn.created_at, turn.turn_id))


def _last_reply(messages: Sequence[Message]) -> int:
    """How many messages there are up to and including the last reply."""
    roles = [message["role"] for message in messages]
    return len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
