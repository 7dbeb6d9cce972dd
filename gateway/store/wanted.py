"""What is looked for among stored turns."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec


class Wanted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """By what stored turns are looked up, all of it inside one tenant.

    `chains` are hashes of prefixes, `echoes` keys of `resolve.echoes`; `request` is the hash of a
    body that was answered at `since` or later, `previous` a turn by its id.
    """

    chains: Sequence[bytes] = ()
    echoes: Sequence[str] = ()
    request: bytes | None = None
    since: float = 0.0
    previous: UUID | None = None
