"""Settings: one YAML file, environment variables over it, read once at start.

Each component has one class, each a section of the file. `NEXTSTATE_CONFIG` names the file
(default `nextstate.yaml` where it exists); `NEXTSTATE_GATEWAY__PORT=8100` overrides
`gateway: {port: …}`. `DATABASE_URL` is honoured without the prefix.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
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
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from gateway.errors import ConfigError

S = TypeVar("S", bound="Settings")

Positive = Annotated[int, Field(gt=0)]


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
    keepalive_comment_s: float = Field(15.0, gt=0, description="silence before an SSE comment")
    shutdown_grace_s: float = Field(30.0, ge=0)
    debug_decisions: bool = Field(False, description="log how each session and kind was decided")


class ModelSettings(Section):
    """The policy's base model, and what agents call it."""

    path: Path | None = Field(None, description="HF directory: tokenizer, template, weights")
    name: str = "nextstate"
    aliases: tuple[str, ...] = Field((), description="other names served by the policy; `*` is any")
    context_length: Positive | None = Field(None, description="default: the model's own")
    renderer: str = Field("auto", description="`auto`, `template`, or a renderer's name")


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
    connect_timeout_s: float = Field(5.0, gt=0)
    idle_timeout_s: float = Field(120.0, gt=0, description="longest silence inside a generation")
    control_timeout_s: float = Field(60.0, gt=0, description="loading and unloading weights")
    retries: int = Field(2, ge=0, description="tries on another engine, before the first byte")

    @model_validator(mode="before")
    @classmethod
    def _named_for_its_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") == "openai":
            return {"name": "openai-0", **values}
        return values


class KeyLimits(Section):
    """What an API key may use of one gateway process; what is left open has no limit."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = Field(None, description="of prompts and replies")
    concurrent_requests: Positive | None = None


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

    session_timeout_s: float = Field(3600.0, gt=0)
    trainable_patterns: tuple[str, ...] = ()
    auxiliary_patterns: tuple[str, ...] = ()
    cache_turns: Positive = Field(4096, description="recent turns kept in memory, ids included")


class FreshnessSettings(Section):
    """η of the staleness bound and what a version consumes."""

    max_lag: int = Field(4, ge=0, description="η: versions a sample may be behind")
    batch: Positive = Field(16, description="samples that one version consumes")


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    content: bool = Field(False, description="allow prompts and replies in logs")


#: Sections of the file; a component reads its own and ignores the others'.
SECTIONS = (
    "gateway", "model", "sampling", "engines", "database", "session_awareness",
    "freshness", "limits", "log", "judge", "trainer", "local",
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
    log: LogSettings = Field(default_factory=LogSettings)

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
        """Arguments, then the environment, then the file."""
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
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError("wrong settings: " + "; ".join(lines)) from None
