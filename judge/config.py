"""Settings of the judge: the section `judge` of the file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config import Positive, Section, Settings

Share = Annotated[float, Field(ge=0, le=1)]


class JudgeConfig(Section):
    """How jobs are claimed, and which rules may decide them."""

    concurrency: Positive = Field(16, description="jobs judged at once by one worker")
    lease_s: float = Field(60.0, gt=0, description="a dead worker's jobs are free after this long")
    max_attempts: Positive = Field(3, description="then the job is set aside with its last error")
    retry_after_s: float = Field(2.0, ge=0, description="wait after a failure, doubled each time")
    poll_s: float = Field(2.0, gt=0, description="look for jobs this often, without a notification")
    job_timeout_s: float = Field(30.0, gt=0, description="one attempt at one job")
    shutdown_grace_s: float = Field(10.0, ge=0, description="for jobs in hand when asked to stop")
    heartbeat_s: float = Field(1.0, gt=0, description="between signs of life")
    idle_check_s: float = Field(30.0, gt=0, description="between looks for sessions gone idle")
    settling_rules: tuple[str, ...] | None = Field(
        None, description="rules that may settle a score; default: all of them"
    )
    rule_weights: dict[str, Share] = Field(
        default_factory=dict, description="confidence of a rule in place of its own; 0 turns it off"
    )
    min_confidence: Share = Field(0.0, description="findings below this do not settle a score")
    sample_method: str = Field("binary", description="method that samples of scored turns are for")


class JudgeSettings(Settings):
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
