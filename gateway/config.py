"""Settings: one YAML file, environment variables over it, read once at start.

Each component has one class, each a section of the file. `NEXTSTATE_CONFIG` names the file
(default `nextstate.yaml` where it exists); `NEXTSTATE_GATEWAY__PORT=8100` overrides
`gateway: {port: …}`, and with `_FILE` at its end a variable names a file that holds the value.
`DATABASE_URL` is honoured without the prefix.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from gateway.errors import ConfigError
from gateway.secret_files import with_files

S = TypeVar("S", bound="Settings")

Positive = Annotated[int, Field(gt=0)]
Modality = Literal["image", "audio"]


class Section(BaseModel):
    """A component's settings: unknown names are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(Section):
    """The gateway's own socket and limits."""

    host: str = "127.0.0.1"
    port: int = Field(8100, ge=0, le=65535)
    max_body_bytes: Positive = 8 * 1024 * 1024
    max_messages: Positive = 4096
    max_id_bytes: Positive = 200
    max_media: Positive = Field(50, description="images and audio clips of a request")
    max_media_bytes: Positive = Field(5 * 1024 * 1024, description="of each, decoded")
    replicas: int = Field(1, ge=1, description="gateways that share the limits of keys")
    body_timeout_s: float = Field(60.0, gt=0, description="longest wait for a request's body")
    keepalive_comment_s: float = Field(15.0, gt=0, description="silence before an SSE comment")
    drain_s: float = Field(
        0.0,
        ge=0,
        description="at SIGTERM: served, but not ready, for so long before the socket closes",
    )
    shutdown_grace_s: float = Field(30.0, ge=0)
    idle_check_s: float = Field(30.0, gt=0, description="between looks for sessions gone idle")
    operators: str = Field(
        "default", description="the tenant whose admin keys manage tenants and rules; empty: none"
    )
    metrics_open: bool = Field(False, description="serve /metrics to whoever asks, without a key")
    debug_decisions: bool = Field(False, description="log how each session and kind was decided")


class ModelSettings(Section):
    """The policy's base model, and what agents call it."""

    path: Path | None = Field(None, description="HF directory: tokenizer, template, weights")
    name: str = "nextstate"
    aliases: tuple[str, ...] = Field((), description="other names served by the policy; `*` is any")
    context_length: Positive | None = Field(None, description="default: the model's own")
    renderer: str = Field("auto", description="`auto`, `template`, or a renderer's name")
    modalities: tuple[Modality, ...] | None = Field(
        None, description="what it takes beside text; default: what its files say"
    )
    fetch_media: bool = Field(
        False,
        description="let engines fetch http(s) addresses that clients send, inside the network too",
    )


class SamplingDefaults(Section):
    """What is sent to the engine where the client leaves it open."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: Positive | None = Field(None, description="default: what the context leaves")


class EngineSettings(Section):
    """One inference engine.

    Kind `openai` is any server with `/chat/completions` below `url` (which ends in `/v1` for
    most). It gives text without token ids, so its turns are stored and judged, never trained on.
    """

    kind: Literal["sglang", "openai"] = "sglang"
    name: str = "sglang-0"
    url: str = "http://127.0.0.1:30000"
    api_key: SecretStr | None = None
    model: str | None = Field(None, description="kind `openai`: its name there; default: as asked")
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="kind `openai`: what it calls the most tokens of a reply"
    )
    modalities: tuple[Modality, ...] = Field(
        (), description="kind `openai`: what it takes beside text"
    )
    fetch_media: bool = Field(
        False, description="kind `openai`: it fetches http(s) addresses that clients send"
    )
    connect_timeout_s: float = Field(5.0, gt=0)
    idle_timeout_s: float = Field(
        120.0,
        gt=0,
        description="longest silence inside a generation, but while its weights are replaced; of a "
        "reply that is not streamed the engine sends 16 tokens at a time",
    )
    control_timeout_s: float = Field(60.0, gt=0, description="each order but a load of weights")
    load_timeout_s: float = Field(
        120.0,
        gt=0,
        description="each load of weights, and a second more for every 50 MB of them; one that "
        "answers nothing meanwhile is given up within the minute",
    )
    retries: int = Field(2, ge=0, description="tries on another engine, before the first byte")

    @model_validator(mode="before")
    @classmethod
    def _named_for_its_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") == "openai":
            return {"name": "openai-0", **values}
        return values


class KeyLimits(Section):
    """What an API key may use of all replicas together; what is left open has no limit."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = Field(None, description="of prompts and replies")
    concurrent_requests: Positive | None = None

    def within(self, own: KeyLimits) -> KeyLimits:
        """Limits of a key's own, none above or without these."""
        found = {}
        for name in KeyLimits.model_fields:
            both = [one for one in (getattr(self, name), getattr(own, name)) if one is not None]
            found[name] = min(both, default=None)
        return KeyLimits(**found)

    def of_each(self, replicas: int) -> KeyLimits:
        """What one of so many processes allows, 1 at least."""
        given = {name: getattr(self, name) for name in KeyLimits.model_fields}
        return KeyLimits(**{name: n and max(1, n // replicas) for name, n in given.items()})


class LimitSettings(KeyLimits):
    """The same for every key, but for those in `keys`: by a key's name, or TENANT/NAME."""

    keys: dict[str, KeyLimits] = Field(default_factory=dict)

    def of(self, tenant: str, name: str) -> KeyLimits:
        """The limits of one key; those in `keys` stand in place of all of the general ones."""
        return self.keys.get(f"{tenant}/{name}") or self.keys.get(name) or self


class DatabaseSettings(Section):
    url: SecretStr | None = Field(None, description="PostgreSQL 15 or later")
    pool_size: Positive = 8
    command_timeout_s: float = Field(10.0, gt=0)
    commit_timeout_s: float = Field(3.0, gt=0, description="then the turn goes to the spool")
    spool: Path = Field(Path("spool"), description="where turns wait while Postgres is away")
    spool_bytes: Positive = Field(1 << 30, description="the most that may wait there")


class SessionSettings(Section):
    """`session_awareness`: how sessions end and which calls are trained on."""

    session_timeout_s: float = Field(
        3600.0, gt=0, validation_alias=AliasChoices("session_timeout_s", "session_timeout")
    )
    trainable_patterns: tuple[str, ...] = ()
    auxiliary_patterns: tuple[str, ...] = ()
    cache_turns: Positive = Field(4096, description="recent turns kept in memory, ids included")


class FreshnessSettings(Section):
    """η of the staleness bound and what a version consumes."""

    max_lag: int = Field(4, ge=0, description="η: versions a sample may be behind")
    batch: Positive = Field(16, description="samples that one version consumes")
    hard_cap: float = Field(
        4.0, ge=1, description="times (η + 1) * batch; beyond it turns are served uncaptured"
    )
    refresh_s: float = Field(
        1.0, gt=0, description="age at which what replicas know of each other is read again"
    )
    idle_s: float = Field(
        30.0, ge=0, description="a turn that nothing has followed for so long is not waited for"
    )


class RedactionSettings(Section):
    """What is taken out of conversations before they are stored; see docs/privacy.md."""

    patterns: tuple[Literal["email", "phone", "card", "iban", "key"], ...] = (
        "email",
        "phone",
        "card",
        "iban",
        "key",
    )
    expressions: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], str] = Field(
        default_factory=dict, description="regular expressions of your own, by name"
    )
    detectors: tuple[str, ...] = Field(
        (), description="entry points of the group nextstate.detectors"
    )
    settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="what each detector is made with, by its name"
    )
    hash_key: SecretStr = Field(
        min_length=16, description="keys the hashes of texts; the same for every gateway, kept"
    )

    @field_validator("expressions")
    @classmethod
    def _compile(cls, expressions: dict[str, str]) -> dict[str, str]:
        for name, expression in expressions.items():
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"{name}: {error}") from None
        return expressions


class CaptureSettings(Section):
    """What of a conversation is stored."""

    media: bool = Field(
        False, description="keep images and audio; else their digest, type and size"
    )
    redaction: RedactionSettings | None = Field(
        None, description="default: conversations are stored as they are"
    )


class RetentionSettings(Section):
    """How what tenants keep for a time only (`retention` of their settings) is cleared."""

    check_s: float = Field(600.0, gt=0, description="between looks for what is due")
    batch: Positive = Field(500, description="turns that one transaction looks at")
    turns_per_s: Positive = Field(2000, description="the most that are looked at")
    grace_s: float = Field(
        86_400.0, ge=0, description="how much longer what waits to be judged or trained on may"
    )


class LogFileSettings(Section):
    """Lines of JSON in files too: `COMPONENT.log`, moved aside by size and by age."""

    directory: Path = Path("logs")
    max_bytes: Positive = Field(64 * 1024 * 1024, description="then a file is moved aside")
    max_age_s: float = Field(86_400.0, gt=0, description="then it is moved aside too")
    keep: int = Field(7, ge=0, description="older files of a component that are kept")


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    content: bool = Field(False, description="allow prompts and replies in logs")
    sample: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict, description="share of an event's lines that are kept, by its name"
    )
    file: LogFileSettings | None = Field(None, description="default: standard output alone")


class TracingSettings(Section):
    """OpenTelemetry: spans of every stored turn, over OTLP/HTTP. Off without an endpoint."""

    endpoint: str | None = Field(
        None, pattern=r"^https?://", description="a collector; `/v1/traces` is added where it lacks"
    )
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="for the collector")
    sample: float = Field(1.0, ge=0, le=1, description="share of turns, the same in each process")


#: Sections of the file; a component reads its own and ignores the others'.
SECTIONS = (
    "gateway", "model", "sampling", "engines", "database", "session_awareness",
    "freshness", "limits", "capture", "retention", "log", "tracing", "judge", "trainer", "local",
)  # fmt: skip


class Settings(BaseSettings):
    """What every component reads. A component with a section of its own adds it in a subclass."""

    model_config = SettingsConfigDict(
        env_prefix="NEXTSTATE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    gateway: ServerSettings = Field(default_factory=ServerSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    sampling: SamplingDefaults = Field(default_factory=SamplingDefaults)
    engines: tuple[EngineSettings, ...] = (EngineSettings(),)
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    session_awareness: SessionSettings = Field(default_factory=SessionSettings)
    freshness: FreshnessSettings = Field(default_factory=FreshnessSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    capture: CaptureSettings = Field(default_factory=CaptureSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)

    @field_validator("engines")
    @classmethod
    def _names_differ(cls, engines: tuple[EngineSettings, ...]) -> tuple[EngineSettings, ...]:
        if len({engine.name for engine in engines}) < len(engines):
            raise ValueError("engine names must differ")
        return engines

    @property
    def token_engines(self) -> tuple[EngineSettings, ...]:
        """Those that tell token ids and take adapters."""
        return tuple(engine for engine in self.engines if engine.kind == "sglang")

    @property
    def text_engines(self) -> tuple[EngineSettings, ...]:
        return tuple(engine for engine in self.engines if engine.kind == "openai")

    @property
    def database_url(self) -> str:
        """The URL of Postgres, in the plain `postgresql://` form.

        Raises ConfigError where none is configured.
        """
        secret = self.database.url
        url = secret.get_secret_value() if secret else os.environ.get("DATABASE_URL", "")
        if not url:
            raise ConfigError("no database: set DATABASE_URL or database.url")
        scheme, _, rest = url.partition("://")
        if scheme.split("+")[0] not in ("postgres", "postgresql") or not rest:
            raise ConfigError("the database URL must start with postgresql://")
        return f"postgresql://{rest}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment and the files that it names, then the file."""
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = with_files(env_settings.env_vars, SECTIONS)
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if path := config_file():
            sources.append(YamlConfigSettingsSource(settings_cls, yaml_file=path))
        return tuple(sources)


def config_file() -> Path | None:
    """The settings file in force. Raises ConfigError where a named one does not exist."""
    named = os.environ.get("NEXTSTATE_CONFIG")
    path = Path(named or "nextstate.yaml")
    if path.is_file():
        return path
    if named:
        raise ConfigError(f"NEXTSTATE_CONFIG names {path}, which is not a file")
    return None


def load(kind: type[S], **values: object) -> S:
    """Read the settings of one component; `values` win over file and environment.

    Raises ConfigError that names each wrong setting, one a line.
    """
    try:
        if path := config_file():
            content = yaml.safe_load(path.read_text()) or {}
            unknown = sorted(set(content) - set(SECTIONS))
            if unknown:
                raise ConfigError(f"{path}: unknown section {', '.join(unknown)}")
        return kind(**values)  # type: ignore[arg-type]
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise ConfigError(f"the settings file cannot be read: {error}") from None
    except SettingsError as error:
        raise ConfigError(f"wrong settings: {error}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError("wrong settings: " + "; ".join(lines)) from None
