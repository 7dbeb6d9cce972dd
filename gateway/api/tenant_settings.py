"""What a tenant may set for itself, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.api.admin_query import Body, KeyLimits, Text

Label = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
#: Their pattern is all that the document would say of the names.
Labels = Annotated[
    dict[Label, Text], Field(max_length=64, json_schema_extra={"additionalProperties": False})
]
Days = Annotated[int, Field(ge=1, le=36_500)]


class Retention(Body):
    """For how many days something of a turn is kept; what is left open is kept for good.

    `text_days` are the words of users, models, tools and judges, `tokens_days` ids and
    log-probabilities, `scores_days` judgements, feedback and samples, `turns_days` all of a turn.
    """

    text_days: Days | None = None
    tokens_days: Days | None = None
    scores_days: Days | None = None
    turns_days: Days | None = None


class TenantSettings(Body):
    """Each section stands as a whole; a section that is null is taken away.

    `labels` are the operator's own words about the tenant; nothing goes by them. With `capture`
    false nothing of the tenant's requests is stored; `retention` says for how long what is stored.
    `limits`, which operators alone set, are what all keys of the tenant may use together.
    """

    labels: Labels | None = None
    capture: bool | None = None
    retention: Retention | None = None
    limits: KeyLimits | None = None

    def sections(self) -> dict[str, Any]:
        """What was named, in plain values."""
        return self.model_dump(mode="json", exclude_unset=True)


#: What operators alone set.
OF_OPERATORS = frozenset({"limits"})


def merged(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the given sections in place of theirs (RFC 7396, one level deep)."""
    return {name: one for name, one in {**stored, **given}.items() if one is not None}
