"""What operators have paused: capture and judging of a tenant, training of a lineage.

One setting in Postgres, which every process follows: it is told of a change, and looks every
`LOOK_S` in case it was not. No request asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.errors import Conflict
from gateway.store.changes import Change
from gateway.store.database import Database
from gateway.store.setting_follower import LOOK_S, SettingFollower
from gateway.store.settings import SettingStore

PAUSES = "pauses"
#: Others may change the setting meanwhile.
_TRIES = 8


class Paused(StrEnum):
    """What can be paused; of training the subject is a lineage, else a tenant."""

    CAPTURE = "capture"
    JUDGING = "judging"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """By what is paused, the subjects with what is known of each: `since`, `reason` and `by`."""

    entries: Mapping[Paused, Mapping[UUID, Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, what: Paused) -> Mapping[UUID, Mapping[str, Any]]:
        return self.entries.get(what, {})

    def told(self, tenant_id: UUID, lineages: Collection[UUID]) -> list[dict[str, Any]]:
        """What concerns a tenant that uses these lineages: `{"what", "subject_id", …}`.

        Of a lineage that another tenant has paused, not who and why.
        """
        return [
            _told(what, subject, entry, tenant_id)
            for what in Paused
            for subject, entry in self.of(what).items()
            if subject == tenant_id or (what is Paused.TRAINING and subject in lineages)
        ]

    def counts(self) -> dict[str, int]:
        """How many tenants or lineages each is paused for."""
        return {what.value: len(self.of(what)) for what in Paused}


def _told(what: Paused, subject: UUID, entry: Mapping[str, Any], tenant_id: UUID) -> dict[str, Any]:
    own = entry.get("tenant") == tenant_id.hex
    return {
        "what": what.value,
        "subject_id": subject,
        "since": entry["since"],
        "reason": entry["reason"] if own else None,
        "by": entry["by"] if own else None,
    }


def read_pauses(value: Mapping[str, Any]) -> Pauses:
    """The setting as it is stored."""
    return Pauses(
        entries={
            what: {UUID(subject): entry for subject, entry in value.get(what.value, {}).items()}
            for what in Paused
        }
    )


class PauseStore:
    """Reads and changes the setting. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._settings = SettingStore(database)

    async def read(self) -> Pauses:
        stored = await self._settings.get(PAUSES)
        return read_pauses(stored.value if stored else {})

    async def pause(self, change: Change, what: Paused, subject: UUID, reason: str) -> Pauses:
        """What is paused already stays so, with the reason that it had."""
        entry = {
            "since": time.time(),
            "reason": reason,
            "by": str(change.who.key_id),
            "tenant": change.tenant_id.hex,
        }
        return await self._change(change, what, subject, entry)

    async def resume(self, change: Change, what: Paused, subject: UUID) -> Pauses:
        return await self._change(change, what, subject, None)

    async def _change(
        self, change: Change, what: Paused, subject: UUID, entry: Mapping[str, Any] | None
    ) -> Pauses:
        for _ in range(_TRIES):
            stored = await self._settings.get(PAUSES)
            value = dict(stored.value) if stored else {}
            subjects = dict(value.get(what.value, {}))
            if (subject.hex in subjects) == (entry is not None):
                return read_pauses(value)
            if entry is None:
                del subjects[subject.hex]
            else:
                subjects[subject.hex] = entry
            value[what.value] = subjects
            seen = stored.version if stored else 0
            put = await self._settings.put(PAUSES, value, seen=seen, change=change)
            if put is not None:
                return read_pauses(value)
        raise Conflict("Others are pausing and resuming at this moment: try again.")


class PauseFollower(SettingFollower[Pauses]):
    """Keeps `current` as Postgres says; `changed` is called where that differs from before."""

    def __init__(
        self,
        database: Database,
        look_s: float = LOOK_S,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(database, PAUSES, read_pauses, look_s=look_s, changed=changed)

    def is_paused(self, what: Paused, subject: UUID) -> bool:
        return subject in self.current.of(what)
