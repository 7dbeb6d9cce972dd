"""What the admin API answers, for its document: tests hold every answer to it."""

from gateway.api.shapes.base import Shape, created, ok, streamed
from gateway.api.shapes.keys import Key, KeyPage, NewKey
from gateway.api.shapes.learning import (
    Events,
    Moved,
    Policies,
    Scores,
    Staleness,
    Swaps,
    Traffic,
    TrainSteps,
)
from gateway.api.shapes.operating import (
    Audit,
    Classified,
    Engine,
    Engines,
    Imported,
    Pauses,
    Queued,
    Rules,
    Status,
    Workers,
)
from gateway.api.shapes.sessions import Closed, Session, SessionPage
from gateway.api.shapes.tenants import Tenant, TenantPage
from gateway.api.shapes.turns import Explained, FullTurn, Turn, TurnPage

__all__ = [
    "Audit",
    "Classified",
    "Closed",
    "Engine",
    "Engines",
    "Events",
    "Explained",
    "FullTurn",
    "Imported",
    "Key",
    "KeyPage",
    "Moved",
    "NewKey",
    "Pauses",
    "Policies",
    "Queued",
    "Rules",
    "Scores",
    "Session",
    "SessionPage",
    "Shape",
    "Staleness",
    "Status",
    "Swaps",
    "Tenant",
    "TenantPage",
    "Traffic",
    "TrainSteps",
    "Turn",
    "TurnPage",
    "Workers",
    "created",
    "ok",
    "streamed",
]
