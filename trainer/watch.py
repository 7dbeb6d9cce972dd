"""Looking at the versions whose gate is open, and acting on what the turns say.

A canary is promoted, or a version rolled back, while the trainer does something else: a
regression does not wait for the end of a step. What the step would have named is refused then,
since a rollback begins a new epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import NextstateError, NotLeader
from gateway.records import PolicyRef, Standing, Tally
from gateway.store.evidence import Evidence
from gateway.store.moves import PolicyMoves
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from trainer.ending import end
from trainer.gate import Decision, decide
from trainer.gate_settings import GateSettings

log = get_logger(__name__)

#: A gate that is open, by its place in `Standing`.
OPEN = "open"
#: Clocks of gateways may be off by so much.
_SLACK_S = 5.0


def opened(standing: Standing, settings: GateSettings, now: float) -> dict[str, Any]:
    """The gate of a version that is about to be served after what is live; empty where it is off.

    `anchor` is what it is compared with and what is gone back to. Where the live version is still
    watched that is the one before it, and the turns of both count together.
    """
    if settings.mode == "off":
        return {}
    gate = {"mode": settings.mode, "state": OPEN, "anchor": standing.live.version, "since": now}
    if settings.mode == "watch" and standing.gate.get("state") == OPEN:
        gate |= {name: standing.gate[name] for name in ("anchor", "since")}
    return gate


class Watch:
    """One background task a lineage, in one epoch; `changed` is set whenever it has acted."""

    def __init__(
        self,
        lineage_id: UUID,
        policies: PolicyStore,
        moves: PolicyMoves,
        evidence: Evidence,
        settings: GateSettings,
    ) -> None:
        self._lineage_id, self._settings = lineage_id, settings
        self._policies, self._moves, self._evidence = policies, moves, evidence
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[int, int, int] | None = None
        self.changed = asyncio.Event()

    async def start(self, epoch: int) -> None:
        """Begin to look, as the leader of an epoch."""
        await self.close()
        self._task = asyncio.create_task(self._run(epoch), name=f"gate in epoch {epoch}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    async def _run(self, epoch: int) -> None:
        while True:
            try:
                await self.look(epoch)
            except NotLeader:
                return
            except (NextstateError, asyncpg.PostgresError) as error:
                # Postgres is away, or somebody pinned the version in this moment.
                log.warning("gate_waits", lineage=self._lineage_id.hex, error=str(error))
            await asyncio.sleep(self._settings.look_s)

    async def look(self, epoch: int) -> Decision | None:
        """Decide on what is open now, and act on it. Raises NotLeader, StoreError, Conflict."""
        standing = await self._policies.standing(self._lineage_id)
        if standing.epoch != epoch:
            raise NotLeader(f"epoch {epoch} of lineage {self._lineage_id} is over")
        policy, gate = standing.live, standing.gate
        if standing.canary is not None:
            policy, gate = standing.canary, standing.canary_gate
        if gate.get("state") != OPEN or standing.pinned is not None:
            return None
        decision = await self._decide(policy, gate)
        if decision is not None and decision.outcome != "wait":
            await self._act(epoch, standing, policy, gate, decision)
            self.changed.set()
        return decision

    async def take_back(self, epoch: int, version: int, reason: str) -> None:
        """Undo a live version that nobody can go on from. Raises NotLeader, Conflict."""
        moved = await self._moves.rollback(self._lineage_id, version, reason=reason, epoch=epoch)
        log.error(
            "rolled_back",
            lineage=self._lineage_id.hex,
            policy_version=version,
            live=moved.live_version,
            undone=moved.undone,
            quarantined=moved.quarantined,
            reason=reason,
        )

    async def _decide(self, policy: PolicyRef, gate: Mapping[str, Any]) -> Decision | None:
        """None where no turn has come, and none was judged, since the last look."""
        anchor, since = int(gate["anchor"]), float(gate["since"]) - _SLACK_S
        most = 4 * self._settings.max_turns
        line = await self._policies.line(self._lineage_id, policy.version, anchor)
        ours = await self._tallies(line, since, most)
        seen = policy.version, sum(tally.turns for tally in ours), sum(t.judged for t in ours)
        if seen == self._seen:
            return None
        # A canary runs beside the version before it, a watched one after it. Score, errors and
        # length are compared in the same turns.
        if gate["mode"] == "canary":
            theirs = await self._tallies([anchor], since, most)
        else:
            theirs = await self._tallies([anchor], 0.0, self._settings.baseline_turns)
        settings = self._settings.model_copy(update={"mode": gate["mode"]})
        decision = decide(ours, theirs, settings)
        self._seen = seen
        return decision

    async def _tallies(self, versions: list[int], since: float, limit: int) -> list[Tally]:
        return await self._evidence.tallies(self._lineage_id, versions, since, limit)

    async def _act(
        self,
        epoch: int,
        standing: Standing,
        policy: PolicyRef,
        before: Mapping[str, Any],
        decision: Decision,
    ) -> None:
        lineage, version = self._lineage_id, policy.version
        gate = {**before, "state": decision.outcome, **decision.dump(), "decided_at": time.time()}
        if decision.outcome == "fail":
            log.error("regression", lineage=lineage.hex, policy_version=version, **decision.dump())
            anchor = int(before["anchor"])
            line = await self._policies.line(lineage, version, anchor)
            moved = await self._moves.rollback(
                lineage,
                version if standing.canary is not None else line[-1],
                to=None if standing.canary is not None else anchor,
                reason=decision.reason,
                epoch=epoch,
                gate=gate,
            )
            log.error(
                "rolled_back",
                lineage=lineage.hex,
                policy_version=version,
                live=moved.live_version,
                undone=moved.undone,
                quarantined=moved.quarantined,
                reason=decision.reason,
            )
            return
        if standing.canary is not None:
            await self._policies.promote(lineage, epoch, version, gate)
        else:
            await self._policies.note_gate(lineage, epoch, version, gate)
        log.info("gate_passed", lineage=lineage.hex, policy_version=version, **decision.dump())
