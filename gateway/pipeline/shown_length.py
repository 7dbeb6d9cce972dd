"""The length of a prompt that shows images or audio, as the engine counts it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.engine.pool import EnginePool
from gateway.errors import EngineRejected, InvalidRequest
from gateway.pipeline.media import sources_of
from gateway.records import Generation, Media, Principal, Sampling, new_id, packed_ids


async def shown_length(
    pool: EnginePool, principal: Principal, ids: Sequence[int], media: Sequence[Media]
) -> int:
    """The ids that an engine made of `ids` [P] and what stands at their marks.

    It says so only of what it samples from: one token, which is thrown away. Raises
    InvalidRequest for what it cannot open, and EngineError.
    """
    rid, packed = new_id().hex, packed_ids(ids)
    stream = pool.generate(
        lambda policy: Generation(
            rid=rid,
            input_ids=packed,
            sampling=Sampling(max_tokens=1),
            policy=policy,
            images=sources_of("image", media),
            audio=sources_of("audio", media),
        ),
        principal.lineage_id,
        "",
    )
    length = None
    try:
        async with stream:
            async for chunk in stream:
                if chunk.finish is not None:
                    length = chunk.finish.prompt_tokens
    except EngineRejected as error:
        raise InvalidRequest(error.message, param="messages") from error
    return len(packed) if length is None else length
