"""Settings of the trainer. Importing this never loads torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config import Positive, Section, Settings
from gateway.errors import ConfigError
from trainer.gate_settings import GateSettings
from trainer.megatron_settings import MegatronSettings

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]


class LoraSettings(Section):
    """The adapter that is trained; engines must be started with at least this rank."""

    rank: Positive = 16
    alpha: Positive = Field(32, description="the update is scaled by alpha / rank")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="linear layers that carry an adapter",
    )


class OptimizerSettings(Section):
    """AdamW with linear warm-up."""

    lr: float = Field(3e-4, gt=0, description="learning rate after the warm-up")
    betas: tuple[Share, Share] = Field((0.9, 0.95), description="decay of both moments")
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0, description="steps until the full learning rate")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")


class LossSettings(Section):
    """Decoupled PPO with a KL term to the base model. Formulas: `trainer/losses`."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="ratios below 1 - this are clipped")
    clip_high: float = Field(0.28, ge=0, description="ratios above 1 + this are clipped")
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss of negatives")
    proximal: Literal["forward", "log_linear"] = Field(
        "forward", description="measured before the step, or estimated from versions"
    )
    importance: Literal["truncate", "mask", "none"] = Field(
        "truncate", description="what happens to weights proximal / behaviour out of bounds"
    )
    importance_level: Literal["token", "sequence", "geometric"] = "token"
    importance_floor: float = Field(0.0, ge=0, description="smallest weight")
    importance_cap: float = Field(2.0, gt=0, description="largest weight")
    opsm_delta: float | None = Field(
        0.2, ge=0, description="negatives the policy has left by more nats a token do not train"
    )
    veto: float | None = Field(
        1e-4, gt=0, lt=1, description="a sample with a token ratio below this does not train"
    )
    kl: Literal["exact", "k1", "k2", "k3"] = Field("exact", description="estimator of the KL term")
    kl_coef: float = Field(0.05, ge=0, description="weight of the KL term; 0 leaves it out")
    kl_place: Literal["loss", "reward"] = Field("loss", description="in the reward: k1 only")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    opd_clip: float = Field(
        2.0, gt=0, description="bound on a token's teacher - student log-probability, in nats"
    )
    aggregate: Literal["constant", "token_mean", "sequence_mean"] = Field(
        "constant", description="over what the losses of tokens are averaged"
    )
    reference_length: Positive = Field(40, description="L_ref: token sums are over B * L_ref")
    max_step_kl: float | None = Field(
        0.03,
        gt=0,
        description="an update is halved until its KL(new || old) a token is at most this",
    )

    @model_validator(mode="after")
    def _consistent(self) -> LossSettings:
        if self.importance_floor > self.importance_cap:
            raise ValueError("importance_floor exceeds importance_cap")
        if self.kl_place == "reward" and self.kl != "k1":
            raise ValueError("a KL in the reward must be k1: others have another gradient there")
        return self


class CreditSettings(Section):
    """What a score is compared with, and what it counts."""

    method: Literal["binary", "grpo", "opd", "combined"] = Field(
        "binary",
        description="grpo: replies to the same task are compared with each other; opd: what the "
        "teacher says of each token; combined: binary and opd",
    )
    w_rl: float = Field(1.0, ge=0, description="combined: weight of the score's advantage")
    w_opd: float = Field(1.0, ge=0, description="opd, combined: weight of the teacher's")
    distil: Literal["sampled", "top_k"] = Field(
        "sampled",
        description="top_k: a divergence over the teacher's tokens and one bin for all others, "
        "where it gave any; sampled: the difference at the sampled token",
    )
    discount: Share = Field(
        0.0, description="what a later turn's score of the same session counts, a turn in between"
    )
    against: Literal["mean", "std", "leave_one_out"] = Field(
        "leave_one_out", description="what a reply of a group is compared with"
    )
    leave_one_out: Share = Field(0.5, description="share of the batch's mean in the baseline")
    horizon: Positive = Field(64, description="scores that the running mean looks back on")
    user_prior: float = Field(4.0, ge=0, description="scores of a user that outweigh the overall")
    max_users: Positive = Field(10_000, description="users whose running mean is kept")
    negative_weight: float = Field(0.5, ge=0, description="weight of samples that scored below 0")
    rule_share: float = Field(
        0.5, ge=0.5, le=1, description="a rule's largest share of a batch's positives"
    )

    @property
    def taught(self) -> bool:
        """Whether a teacher's word is trained on."""
        return self.method in ("opd", "combined")


class AlarmSettings(Section):
    """When a batch's behaviour is out of the usual; alarms are logged, and change nothing."""

    after: Positive = Field(4, description="batches before anything is usual")
    horizon: Positive = Field(32, description="batches that the usual looks back on")
    length_factor: float = Field(1.5, gt=1, description="replies longer or shorter by this factor")
    rate_change: float = Field(0.25, gt=0, description="change of a share of replies")
    max_solicitation: Share = Field(0.1, description="share of replies that ask for praise")
    solicits: tuple[str, ...] = Field(
        (
            r"thank me\b",
            r"(?:say|reply|answer|type)(?: with)?(?: just)? [\"']?(?:thanks|thank you|great)\b",
            r"rate (?:me|this|my (?:answer|reply))\b",
            r"(?:give|leave) (?:me|this)(?: \w+){0,2} (?:thumbs|five stars|5 stars|upvote|like)",
            r"bedank(?:e dich|en sie sich)|remercie(?:z)?-moi|dame las gracias|谢谢我|感謝して",
        ),
        description="regular expressions of replies that ask for praise, in any case",
    )

    @field_validator("solicits")
    @classmethod
    def _compiles(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        try:
            re.compile("|".join(patterns))
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return patterns


class PublishSettings(Section):
    """How a version goes live."""

    load_timeout_s: Seconds = Field(
        120.0,
        description="load and proof at one engine together, and a second more for every 50 MB "
        "of weights; the load alone is bounded by the engine's load_timeout_s, too",
    )
    transfer: Literal["disk", "broadcast"] = Field(
        "disk",
        description="how whole weights come to an engine; broadcast: from memory to memory, by "
        "gloo on a CPU or NCCL on a GPU, and from disk where an engine makes no group or the "
        "trainer is several processes",
    )
    broadcast_timeout_s: Seconds = Field(
        60.0, description="broadcast: then ranks that do not answer are given up"
    )
    probe_sequences: Positive = Field(2, description="sequences scored by engine and trainer")
    probe_tokens: Positive = Field(128, description="longest probe sequence")
    probe_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest difference, in nats; null: 0.02 in float32, 0.5 in bfloat16",
    )
    retry_s: Seconds = Field(2.0, description="pause before asking again where no engine answers")
    heartbeat_s: Seconds = Field(15.0, description="a gateway silent for longer is gone")
    drain_timeout_s: Seconds = Field(600.0, description="then the old version stays loaded")
    drain_poll_s: Seconds = 0.5
    keep: Positive = Field(4, description="versions kept on disk")
    gate: GateSettings = Field(default_factory=GateSettings)


class DistributedSettings(Section):
    """A trainer of several processes, started by torchrun. One process reads none of it."""

    shard: Positive | None = Field(
        None,
        description="ranks that one copy of the weights is spread over, best those of a machine; "
        "the copies train along by data; null: all ranks hold one copy",
    )
    timeout_s: Seconds = Field(
        600.0,
        description="a rank that others wait for any longer is lost, and the job ends; longer "
        "than a checkpoint takes to write",
    )
    beat_s: Seconds = Field(
        15.0, description="an idle job looks this often whether all ranks still answer"
    )

    @model_validator(mode="after")
    def _in_time(self) -> DistributedSettings:
        if self.beat_s >= self.timeout_s:
            raise ValueError("beat_s must be below timeout_s, or an idle rank counts as lost")
        return self


class TrainerConfig(Section):
    """The section `trainer`."""

    lineages: tuple[str, ...] = Field(("default",), min_length=1, description="lines to train")
    model_path: Path | None = Field(None, description="HF directory; default: model.path")
    directory: Path = Field(Path("policies"), description="where versions are written")
    batch: Positive | None = Field(None, description="B; default: freshness.batch")
    min_batch: Positive = Field(4, description="fewest samples of a step that is overdue")
    max_wait_s: Seconds = Field(900.0, description="age of the oldest sample that makes it due")
    window: Positive | None = Field(
        None, description="W, the oldest turns that may be taken; default: 1.25 B"
    )
    order: Literal["windowed", "strict", "greedy"] = Field(
        "windowed", description="how a turn without a verdict holds up those behind it"
    )
    verdict_wait_s: Seconds = Field(
        600.0, description="then a turn without a verdict holds up none; a judge may be away"
    )
    per_session: Positive | None = Field(4, description="samples of a session in one batch")
    group_wait_s: Seconds = Field(
        600.0, description="grpo: then a group is taken without the members that have no verdict"
    )
    poll_s: Seconds = Field(5.0, description="look for samples this often without a notice")
    micro_batch_tokens: Positive | None = Field(
        None, description="tokens of a forward pass with padding; null: 256 on CPU, 16384 on GPU"
    )
    head_chunk: Positive = Field(512, description="tokens whose logits are held at a time")
    max_tokens: Positive = Field(16_384, description="longest sample, prompt and reply")
    truncated: Literal["negative", "never", "always"] = Field(
        "negative", description="when a reply that was cut by its length limit trains"
    )
    threads: Positive | None = Field(1, description="torch threads on a CPU; null: torch decides")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of the frozen weights; auto: float32 on CPU, bfloat16 on GPU"
    )
    recompute: Literal["auto", "never", "layers"] = Field(
        "auto",
        description="layers: activations inside a layer are made again in the backward pass, for "
        "a third more arithmetic; auto: on a GPU",
    )
    distributed: DistributedSettings = Field(default_factory=DistributedSettings)
    seed: int = 0
    minibatches: Positive = Field(1, description="optimizer steps of one batch; clips act from 2")
    max_failures: Positive = Field(3, description="steps in a row that may fail before it stops")
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="serve Prometheus metrics there; default: not at all"
    )
    backend: Literal["torch", "megatron"] = Field(
        "torch", description="what computes; megatron trains all weights, on GPUs"
    )
    megatron: MegatronSettings = Field(default_factory=MegatronSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    loss: LossSettings = Field(default_factory=LossSettings)
    credit: CreditSettings = Field(default_factory=CreditSettings)
    alarms: AlarmSettings = Field(default_factory=AlarmSettings)
    publish: PublishSettings = Field(default_factory=PublishSettings)

    @model_validator(mode="after")
    def _read(self) -> TrainerConfig:
        """Nothing that was asked for is left out without a word."""
        if self.backend == "megatron":
            if self.recompute != "auto":
                raise ValueError("backend megatron reads megatron.recompute, not recompute")
            if self.distributed.shard is not None:
                raise ValueError("distributed.shard is of backend torch: see megatron's own sizes")
        elif self.megatron != MegatronSettings():
            raise ValueError("backend torch reads nothing of the section megatron")
        return self


class TrainerSettings(Settings):
    """What the trainer reads of the settings file."""

    trainer: TrainerConfig = Field(default_factory=TrainerConfig)

    @model_validator(mode="after")
    def _window_bounds(self) -> TrainerSettings:
        """B <= W < (η + 1) * B, so that a window never holds what has to be dropped."""
        if not self.batch <= self.window <= self._widest:
            raise ValueError(f"trainer.window must be in [{self.batch}, {self._widest}]")
        return self

    @property
    def batch(self) -> int:
        """B, the samples that one version consumes."""
        return self.trainer.batch or self.freshness.batch

    @property
    def min_batch(self) -> int:
        """The fewest samples of a step; never more than the batch."""
        return min(self.trainer.min_batch, self.batch)

    @property
    def window(self) -> int:
        """W, by default a quarter more than the batch where η allows it.

        The simulation of `bench/schedule.py` trains at twice the batch on quick tasks as greedily
        as without a window; at 1.25 B slow ones keep more of their share, for a tenth of the
        throughput.
        """
        return self.trainer.window or min(5 * self.batch // 4, self._widest)

    @property
    def _widest(self) -> int:
        # At η = 0 nothing may wait for a second version, and the window is the batch.
        return max(self.batch, (self.freshness.max_lag + 1) * self.batch - 1)

    @property
    def model_directory(self) -> Path:
        """The base model. Raises ConfigError where none is configured or it does not exist."""
        path = self.trainer.model_path or self.model.path
        if path is None:
            raise ConfigError("no model: set model.path or trainer.model_path")
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path} is not a model directory: it has no config.json")
        return path
