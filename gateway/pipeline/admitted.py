"""Which calls admission is asked about, and what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.engine.pool import EnginePool
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
    pool: EnginePool,
) -> int:
    """How many turns of a call will wait to be trained on.

    Where sampling is cut, an engine of the `pool` may tell to which ids.

    Side calls, keys that are not captured and what cannot be trained on are never held back. What
    is too much for training is served uncaptured. Raises TooManyRequests for a call that opens a
    session, of a key that is to be turned away.
    """
    principal, place = call.principal, call.place
    if not learnable(call):
        return 0
    for sampling, source in sources:
        if not isinstance(source, TokenSource):
            return 0
        if sampling.untrainable() is not None and not sampling.cut_within(pool.kept_most):
            return 0
    if admitter.admit(
        principal.lineage_id,
        opens=place.resolution.session_id is None,
        rejects=principal.on_stale == "reject",
    ):
        return len(sources)
    call.principal = replace(principal, capture=False)
    return 0
