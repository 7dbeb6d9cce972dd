"""Settings of the judge: the section `judge` of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from gateway.config import EngineSettings, Positive, Section, Settings

#: Methods that train on what a teacher says.
TAUGHT = frozenset({"opd", "combined"})

Share = Annotated[float, Field(ge=0, le=1)]


class LlmConfig(Section):
    """An OpenAI-compatible endpoint that grades what the rules leave open.

    Nothing is sent anywhere unless this section is there. An empty one asks the policy's own
    engine, without any adapter.
    """

    base_url: str | None = Field(
        None,
        pattern="^https?://",
        description="ends with /v1 as a rule; default: the first of `engines`",
    )
    model: str | None = Field(None, description="its name there; needed with base_url")
    api_key: SecretStr | None = None
    votes: Positive = Field(3, le=25, description="asked at once; the majority counts")
    temperature: float = Field(0.6, ge=0, le=2)
    max_tokens: Positive = Field(1024, description="of one answer")
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the endpoint calls that limit"
    )
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

    @model_validator(mode="after")
    def _elsewhere_by_name(self) -> Self:
        if self.base_url is not None and self.model is None:
            raise ValueError("base_url needs a model")
        return self

    def at(self, engine: EngineSettings, model: str) -> LlmConfig:
        """With the engine's address, key and model (`model` where it has no name of its own)."""
        if self.base_url is not None:
            return self
        url = engine.url.rstrip("/")
        return self.model_copy(
            update={
                "base_url": url if engine.kind == "openai" else f"{url}/v1",
                "model": self.model or engine.model or model,
                "api_key": self.api_key or engine.api_key,
                "limit_field": engine.limit_field,
            }
        )


class TeacherConfig(Section):
    """Who scores the sampled tokens of a turn once there is a hint for it.

    `base` is the model without training (on the engines of a LoRA lineage, no adapter), `live` the
    version served now, `fixed` another server of kind `sglang` with the same vocabulary.
    """

    kind: Literal["base", "fixed", "live"] = "base"
    engine: EngineSettings | None = Field(None, description="of kind `fixed`: where it stands")
    model_path: Path | None = Field(
        None, description="of kind `fixed`: its tokenizer and template; default: the policy's"
    )
    top_k: int = Field(
        0, ge=0, le=200, description="other tokens scored in each place, 50 as a rule"
    )
    top_of: Literal["teacher", "student"] = Field(
        "teacher", description="whose likeliest tokens those are"
    )
    retries: int = Field(2, ge=0, le=10, description="then the score is stored without a teaching")
    timeout_s: float = Field(60.0, gt=0, description="for one turn, with its retries")

    @model_validator(mode="after")
    def _fixed_stands_somewhere(self) -> Self:
        if (self.kind == "fixed") != (self.engine is not None):
            raise ValueError("kind fixed needs an engine, and no other kind has one of its own")
        if self.engine is not None and self.engine.kind != "sglang":
            raise ValueError("a teacher scores token ids: its engine must be of kind sglang")
        if self.model_path is not None and self.kind != "fixed":
            raise ValueError("model_path is for kind fixed")
        return self


class AuditConfig(Section):
    """Another model that judges a share of the scored turns again; it never changes a score."""

    llm: LlmConfig = Field(description="should be another model than the one that judges")
    share: Share = Field(0.05, description="of the scored turns")

    @model_validator(mode="after")
    def _stands_apart(self) -> Self:
        if self.llm.base_url is None:
            raise ValueError("an audit needs an endpoint of its own: llm.base_url")
        return self

    @property
    def timeout_s(self) -> float:
        """One turn, with all votes."""
        return 2 * self.llm.timeout_s


class AlarmConfig(Section):
    """When judging is said to have gone wrong. None turns an alarm off."""

    min_count: Positive = Field(30, description="figures over fewer turns or votes mean nothing")
    disagreement: Share | None = Field(0.4, description="mean share of votes beside the majority")
    parse_failures: Share | None = Field(0.2, description="of answered votes")
    vote_errors: Share | None = Field(0.5, description="of votes asked for")
    feedback_kappa: float | None = Field(0.2, description="agreement with feedback below this")
    audit_kappa: float | None = Field(0.2, description="agreement with the audit below this")
    score_drift: float | None = Field(
        0.5, gt=0, description="mean score of the newer half of the window against the older"
    )
    settled_drift: Share | None = Field(
        0.4, description="share settled by rules, the newer half against the older"
    )
    p95_ms: float | None = Field(None, gt=0, description="one judgement")


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
    teacher: TeacherConfig | None = Field(
        None, description="default: the base where sample_method is opd or combined, else none"
    )
    audit: AuditConfig | None = Field(None, description="default: nothing is judged twice")
    skip_stale: bool = Field(True, description="do not judge what is too far behind to be trained")
    alarms: AlarmConfig = Field(default_factory=AlarmConfig)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="serve Prometheus metrics there; default: not at all"
    )
    check_against_feedback: bool = Field(
        True, description="judge turns with explicit feedback once more without it, to compare"
    )

    @property
    def teaching(self) -> TeacherConfig | None:
        """The teacher that is wanted, if any."""
        return self.teacher or (TeacherConfig() if self.sample_method in TAUGHT else None)

    @property
    def attempt_timeout_s(self) -> float:
        """One attempt at one job, with the answers that it waits for."""
        if self.llm is None:
            return self.job_timeout_s
        rounds = 1 if self.llm.hints == "off" else 2
        return self.job_timeout_s + rounds * self.llm.timeout_s


class JudgeSettings(Settings):
    judge: JudgeConfig = Field(default_factory=JudgeConfig)

    @property
    def judging(self) -> JudgeConfig:
        """The section, the LLM at the policy's first engine where it names no other endpoint.

        Told when it is read, since a stack chooses its engine's port late.
        """
        llm = self.judge.llm
        if llm is None or not self.engines:
            return self.judge
        at = llm.at(self.engines[0], self.model.name)
        return self.judge.model_copy(update={"llm": at})
