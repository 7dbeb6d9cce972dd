"""Which calls admission is asked about, and what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.pipeline.admission import Admitter
from gateway.pipeline.source import Source, TokenSource
from gateway.pipeline.turn import Call
from gateway.records import Sampling, TurnKind


def learnable(call: Call) -> bool:
    """Whether anything of a call may be learned from, however it is sampled."""
    kind = call.place.kind.kind
    return call.principal.capture and not call.media and kind is not TurnKind.SIDE


def admitted(
    admitter: Admitter,
    call: Call,
    sources: Sequence[tuple[Sampling, Source]],
    kept_most: int = 0,
) -> int:
    """How many turns of a call will wait to be trained on.

    Where sampling is cut to at most `kept_most` ids, an engine tells which.

    Side calls, keys that are not captured and what cannot be trained on are never held back. What
    is too much for training is served uncaptured. Raises TooManyRequests for a call that opens a
    session, of a key that is to be turned away.
    """
    principal, place = call.principal, call.place
    if (
        not learnable(call)
        or not all(isinstance(source, TokenSource) for _, source in sources)
        or any(sampling.untrainable(kept=sampling.cut_within(kept_most)) for sampling, _ in sources)
    ):
        return 0
    if admitter.admit(
        principal.lineage_id,
        opens=place.resolution.session_id is None,
        rejects=principal.on_stale == "reject",
    ):
        return len(sources)
    call.principal = replace(principal, capture=False)
    return 0
