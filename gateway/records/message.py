"""One chat message, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: One chat message in OpenAI form (`role`, `content`, `tool_calls`, …), decoded JSON. Every
#: dialect is turned into this form at the edge; unknown keys are kept for the template.
Message = Mapping[str, Any]
