"""How a new session is linked to one that is stored: called by it, about it, or its summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from msgspec.structs import replace

from gateway.records import Candidate, Resolution
from gateway.resolve.chain import HALF
from gateway.resolve.echoes import Echo, EchoKind


def called(
    root: Resolution, echoes: Iterable[Echo], candidates: Iterable[Candidate], head: bytes
) -> Resolution:
    """A new session whose user message is the task that one unanswered call gave to an agent.

    A short task may be anybody's words: then the agent must have instructions of its own; `head`
    is the request's `head_hash`.
    """
    kinds = {echo.key: echo.kind for echo in echoes}
    own = head[:HALF]
    callers = {
        turn.session_id
        for turn in candidates
        if not turn.continued
        and (
            kinds.get(turn.echo or "") is EchoKind.TASK
            or (kinds.get(turn.echo or "") is EchoKind.ORDER and turn.tools_hash[:HALF] != own)
        )
    }
    if len(callers) != 1:
        return root
    rule = "called" if root.rule == "new" else root.rule
    return replace(root, rule=rule, parent_session_id=callers.pop(), called=True)


def about(root: Resolution, echoes: Iterable[Echo], candidates: Sequence[Candidate]) -> Resolution:
    """A request that quotes what one session said, or opens with the summary of one.

    Of the first only the link is certain, for anybody may quote; the second goes on with that
    session, as a new root.
    """
    kinds = {echo.key: echo.kind for echo in echoes}
    found: dict[EchoKind, set[UUID]] = {EchoKind.SUMMARY: set(), EchoKind.QUOTE: set()}
    for turn in candidates:
        kind = kinds.get(turn.echo or "")
        if kind is EchoKind.SUMMARY and turn.parent_id is None:
            # Asked for beside the session that it sums up.
            found[kind].add(turn.parent_session_id or turn.session_id)
        elif kind in found:
            found[kind].add(turn.session_id)
    if len(found[EchoKind.QUOTE]) == 1:
        return replace(root, rule="quotes", parent_session_id=found[EchoKind.QUOTE].pop())
    if len(found[EchoKind.SUMMARY]) == 1:
        session_id = found[EchoKind.SUMMARY].pop()
        return replace(root, session_id=session_id, rule="summary", branch_reason="compacted")
    return root
