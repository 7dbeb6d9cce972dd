"""Replacing the whole weights of one SGLang server, with requests in flight.

    pause (retract) -> update, from disk or by broadcast -> continue

Requests in flight are requeued and go on with the new weights, their keys and values computed
anew; the server reports which version sampled which tokens. New requests wait until it continues.
Only `retract` is safe: paused in place, requests keep keys and values of the old weights, and an
update that flushes the cache answers 400 although the weights have changed. So what the server
says of its version after a failed update is not believed: it is named in doubt, which is the name
of no version, until some version has been brought in again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.engine.base import Bucket, Group
from gateway.engine.chunks import reports, weight_version
from gateway.engine.loading import Get, Loading
from gateway.errors import EngineError, EngineRejected
from gateway.records import PolicyRef
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: The version of an engine of whose weights nothing is known.
IN_DOUBT = "in-doubt"
#: For each step of leaving a server in order.
_MEND_S = 5.0

Control = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class WholeWeights:
    """`control` posts to the server and `get` reads from it; both raise EngineError."""

    def __init__(self, engine: str, control: Control, get: Get, loading: Loading) -> None:
        self._engine, self._control, self._get = engine, control, get
        self._loading = loading

    async def load(self, policy: PolicyRef, *, anew: bool = False) -> None:
        """Bring a version in from its directory; where it is there already, only `anew`.

        Raises EngineRejected and what else the server's failures are: then it is in doubt.
        """
        if policy.uri is None:
            raise EngineRejected(
                f"{weight_version(policy)} has no weights to load", engine=self._engine
            )
        if not anew and reports(await self.version(), policy):
            # Whoever brought it in may not have come to this.
            await self.resume()
            return
        async with self.paused():
            await self._loading.post(
                "/update_weights_from_disk",
                {
                    "model_path": policy.uri,
                    "weight_version": weight_version(policy),
                    "flush_cache": True,
                },
                policy,
            )

    async def join(self, group: Group) -> None:
        """See `Receiver.join`."""
        await self._control(
            "/init_weights_update_group",
            {
                "master_address": group.address,
                "master_port": group.port,
                "rank_offset": 1,
                "world_size": group.size,
                "group_name": group.name,
                "backend": group.backend,
            },
        )

    async def leave(self, group: Group) -> None:
        """See `Receiver.leave`."""
        await self._mend(self._control("/destroy_weights_update_group", {"group_name": group.name}))

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> None:
        """See `Receiver.receive`. Between the first bucket and the last one it is in doubt."""
        async with self.paused():
            await self.name_version(IN_DOUBT)
            await self._control("/begin_weight_update", {})
            try:
                for number, bucket in enumerate(buckets):
                    last = number == len(buckets) - 1
                    announced = self._control(
                        "/update_weights_from_distributed",
                        {
                            "names": bucket.names,
                            "dtypes": bucket.dtypes,
                            "shapes": bucket.shapes,
                            "group_name": group.name,
                            "flush_cache": last,
                            "weight_version": weight_version(policy) if last else None,
                        },
                    )
                    await asyncio.gather(announced, send(number))
            finally:
                await self._control("/end_weight_update", {})

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Hold requests while the weights change; in doubt where the block fails."""
        try:
            await self._control("/pause_generation", {"mode": "retract"})
            try:
                yield
            except BaseException:
                await self._mend(self.name_version(IN_DOUBT))
                raise
        except BaseException:
            await self._mend(self.resume())
            raise
        await self.resume()

    async def _mend(self, step: Awaitable[object]) -> None:
        """Do what leaves the server in order after a failure, as far as it still answers."""
        try:
            async with asyncio.timeout(_MEND_S):
                await step
        except (EngineError, TimeoutError) as error:
            log.warning("engine_not_mended", engine=self._engine, error=str(error))

    async def resume(self) -> None:
        """Go on sampling. No error where it does already."""
        await self._control("/continue_generation", {})

    async def version(self) -> str | None:
        """What the server says that it serves."""
        found: str | None = (await self._get("/model_info")).get("weight_version")
        return found

    async def name_version(self, name: str) -> None:
        """Have tokens from now on, and `/model_info`, tell another version."""
        await self._control(
            "/update_weight_version", {"new_version": name, "abort_all_requests": False}
        )

    async def checksum(self) -> str | None:
        """Of all weights as they are in memory; None where the server has none to tell."""
        try:
            found = await self._control("/weights_checker", {"action": "checksum"})
        except EngineRejected as error:
            log.debug("no_weights_checksum", engine=self._engine, error=error.message)
            return None
        told: str | None = found.get("per_engine_checksum")
        return told
