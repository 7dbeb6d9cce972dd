"""What stands in for a renderer where all engines give text and no model's files are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.errors import InvalidRequest
from gateway.records import Message, Trail
from gateway.tokens.marks import Marks
from gateway.tokens.renderer import Extension, Tools


class NoRenderer:
    """Refuses what needs the model's own tokens: they are known to the server behind alone."""

    name = "none"
    uses_tools = True
    marks: Marks = {}  # noqa: RUF012 - read only

    def render(
        self,
        messages: Sequence[Message],  # noqa: ARG002 - the signature is the protocol's
        tools: Tools,  # noqa: ARG002
        template_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> list[int]:
        raise InvalidRequest("The tokens of this model's prompts are not known here.")

    def extend(
        self,
        trail: Trail,  # noqa: ARG002 - the signature is the protocol's
        new_messages: Sequence[Message],  # noqa: ARG002
        messages: Sequence[Message],  # noqa: ARG002
        tools: Tools,  # noqa: ARG002
        template_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Extension:
        return Extension(reason="no_token_ids")
