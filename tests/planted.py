"""Versions that no trainer made, as the record and engines would have them."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

from gateway.records import PolicyKind, PolicyRef, StepRecord, new_id
from gateway.store.database import Database
from gateway.store.leadership import Leadership
from gateway.store.policies import PolicyStore
from tests.tiny_model import make_adapter


async def lead(database: Database, lineage: UUID) -> Leadership:
    leadership = await PolicyStore(database).become_leader(lineage)
    assert leadership is not None
    return leadership


async def plant(database: Database, lineage: UUID, epoch: int, home: Path) -> int:
    """A candidate after the live version, with weights of its own; its number."""
    policies = PolicyStore(database)
    version = await policies.allocate_version(lineage, epoch)
    directory = make_adapter(home / f"{lineage.hex}-{version}", seed=version)
    policy = PolicyRef(
        lineage_id=lineage,
        version=version,
        kind=PolicyKind.LORA,
        uri=str(directory),
        checksum="0" * 64,
    )
    await put_on_record(policies, epoch, policy, str(directory))
    return version


async def put_on_record(
    policies: PolicyStore, epoch: int, policy: PolicyRef, checkpoint: str
) -> None:
    """Name a version that comes after the live one by a step of no samples."""
    live = await policies.live_of(policy.lineage_id)
    now = time.time()
    await policies.advance(
        StepRecord(
            id=new_id(),
            lineage_id=policy.lineage_id,
            epoch=epoch,
            from_version=live.version,
            to_version=policy.version,
            policy=policy,
            checkpoint=checkpoint,
            sample_ids=(),
            lags=(),
            metrics={},
            started_at=now,
            ended_at=now,
        )
    )
