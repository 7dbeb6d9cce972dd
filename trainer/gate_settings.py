"""Settings of the gate between a proven version and all of the traffic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config import Positive, Section

Chance = Annotated[float, Field(gt=0, lt=0.5)]


class GateSettings(Section):
    """How a version is compared with the one before it. The tests are those of `trainer.gate`.

    `watch`: it goes live, and back by itself where it is shown to be worse. `canary`: a share of
    sessions tries it first, and training waits for the outcome, so that no live sample grows
    stale for it. The limits are what a version may be worse by and still be promoted; the error
    rates hold over all looks together, however often one looks.
    """

    mode: Literal["watch", "canary", "off"] = Field("watch", description="see above")
    share: float = Field(0.1, gt=0, le=0.5, description="of sessions that a canary serves")
    min_turns: Positive = Field(
        20,
        description="judged turns of each version before any outcome; turns of each before one "
        "whose replies fail is rolled back",
    )
    max_turns: Positive = Field(2000, description="judged turns after which the estimate decides")
    baseline_turns: Positive = Field(
        2000, description="watch: newest turns of the version before that it is compared with"
    )
    alpha: Chance = Field(0.01, description="chance that a version no worse is rolled back")
    beta: Chance = Field(0.05, description="chance that one worse by a limit is promoted")
    max_score_drop: float = Field(0.1, gt=0, le=2, description="limit: mean score lower by this")
    max_error_rise: float = Field(
        0.1, gt=0, le=1, description="limit: share of replies cut, aborted or misread higher by it"
    )
    max_length_factor: float = Field(
        2.0, gt=1, description="limit: replies (geometric mean of tokens) this much longer, shorter"
    )
    max_kl: float | None = Field(
        0.1, gt=0, description="largest KL(new || old) a token of a version's step, in nats"
    )
    max_base_kl: float | None = Field(
        None, gt=0, description="largest KL to the base a token, where the step measures it"
    )
    look_s: float = Field(2.0, gt=0, description="pause between two looks")
