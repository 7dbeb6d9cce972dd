"""What schemathesis is told beside the document; loaded by its command."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx: Any, value: Any) -> bytes:
    """Lines are made up as one text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
