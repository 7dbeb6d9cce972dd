"""Errors as the OpenAI API answers them, whichever of its protocols a request is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from uuid import UUID

from gateway.errors import NextstateError, RequestError
from gateway.wire.chat_encoder import error_body
from gateway.wire.outcome import outcome_of


class OpenAIErrors:
    """Mixed into a dialect. `params` has the dialect's own names of what the pipeline checks."""

    params: ClassVar[Mapping[str, str]] = {}

    def error(
        self,
        error: NextstateError,
        request_id: UUID | None = None,  # noqa: ARG002 - a header says it
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request that failed."""
        if isinstance(error, RequestError) and error.param is not None:
            error.param = self.params.get(error.param, error.param)
        outcome = outcome_of(error)
        return outcome.status, dict(outcome.headers), error_body(error)
