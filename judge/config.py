"""Settings of the judge: the section `judge` of the file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from gateway.config import Positive, Section, Settings

Share = Annotated[float, Field(ge=0, le=1)]


class LlmConfig(Section):
    """An OpenAI-compatible endpoint that grades what the rules leave open.

    Nothing is sent anywhere unless this section is there. The stack's own engine is
    `http://127.0.0.1:PORT/v1` of the engine; its gateway serves as well.
    """

    base_url: str = Field(pattern="^https?://", description="ends with /v1 as a rule")
    model: str
    api_key: SecretStr | None = None
    votes: Positive = Field(3, le=25, description="asked at once; the majority counts")
    temperature: float = Field(0.6, ge=0, le=2)
    max_tokens: Positive = Field(1024, description="of one answer")
    timeout_s: float = Field(20.0, gt=0, description="one answer, with its retries")
    retries: int = Field(2, ge=0)
    max_concurrency: Positive = Field(32, description="answers waited for at once")
    structured: Literal["auto", "always", "never"] = Field(
        "auto", description="ask for JSON by schema; auto: until the endpoint refuses it"
    )
    show_reasoning: bool = Field(False, description="let it read what the model thought")
    guidance: str = Field("", max_length=8000, description="what counts here, added to the prompt")
    text_chars: Positive = Field(8000, description="shown of one message")
    prompt_chars: Positive = Field(48_000, description="shown of all messages together")
    tokens_per_day: Positive | None = Field(None, description="of one worker; then it abstains")
    usd_per_day: float | None = Field(None, gt=0)
    prompt_usd: float = Field(0.0, ge=0, description="price of a million prompt tokens")
    completion_usd: float = Field(0.0, ge=0, description="price of a million answered tokens")
    headers: dict[str, str] = Field(
        default_factory=lambda: {"X-Turn-Type": "side"},
        description="sent along; the default keeps a gateway from training on these calls",
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="added to the request")
    hints: Literal["off", "any", "majority"] = Field(
        "off", description="ask what would have been better, and how many votes must agree"
    )


class JudgeConfig(Section):
    """How jobs are claimed, and who may decide them."""

    concurrency: Positive = Field(16, description="jobs judged at once by one worker")
    lease_s: float = Field(60.0, gt=0, description="a dead worker's jobs are free after this long")
    max_attempts: Positive = Field(3, description="then the job is set aside with its last error")
    retry_after_s: float = Field(2.0, ge=0, description="wait after a failure, doubled each time")
    poll_s: float = Field(2.0, gt=0, description="look for jobs this often, without a notification")
    job_timeout_s: float = Field(30.0, gt=0, description="one attempt at one job, endpoints aside")
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
    llm: LlmConfig | None = Field(None, description="default: no LLM judges anything")
    line: tuple[str, ...] | None = Field(
        None, description="judges by name, the first that has an opinion decides; default: rules, "
        "then llm where it is configured"
    )  # fmt: skip
    plugins: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings of judges that other packages bring"
    )
    check_against_feedback: bool = Field(
        True, description="judge turns with explicit feedback once more without it, to compare"
    )

    @property
    def attempt_timeout_s(self) -> float:
        """One attempt at one job, with the answers that it waits for."""
        if self.llm is None:
            return self.job_timeout_s
        rounds = 1 if self.llm.hints == "off" else 2
        return self.job_timeout_s + rounds * self.llm.timeout_s


class JudgeSettings(Settings):
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
