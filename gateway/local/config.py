"""Settings of the one-machine stack: the section `local`, and all that its processes read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr

from gateway.config import Positive, Section
from gateway.local.model import DEFAULT_MODEL
from judge.config import JudgeSettings
from trainer.config import TrainerSettings


class LocalConfig(Section):
    """What runs here and where it keeps its files.

    PostgreSQL runs here unless a database is configured, and an engine unless `engines` are.
    """

    home: Path = Field(Path(".nextstate"), description="data, logs, keys and versions")
    model: str = Field(DEFAULT_MODEL, description="its name, or a Hugging Face directory")
    engine_port: int = Field(0, ge=0, le=65535, description="0: any that is free")
    engine_max_running: Positive | None = Field(
        None, description="requests that the engine runs at once; null: 24 on a CPU, else its own"
    )
    engine_max_tokens: Positive | None = Field(
        None, description="tokens of the engine's cache; null: 24,576 on a CPU, else its own"
    )
    engine_start_s: float = Field(300.0, gt=0)
    start_s: float = Field(180.0, gt=0, description="for each other process")
    judge: bool = Field(True, description="run a judge")
    trainer: bool = Field(True, description="run a trainer")


class LocalSettings(JudgeSettings, TrainerSettings):
    """The settings of every process of the stack."""

    local: LocalConfig = Field(default_factory=LocalConfig)

    @property
    def home(self) -> Path:
        return self.local.home.expanduser().absolute()

    @property
    def own_engine(self) -> bool:
        """Whether the stack starts an engine itself."""
        return "engines" not in self.model_fields_set


def plain(settings: LocalSettings) -> dict[str, Any]:
    """What differs from the defaults, as YAML can hold it, secrets included."""
    content: dict[str, Any] = _plain(settings.model_dump(exclude_defaults=True))
    return content


def _plain(value: object) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case BaseModel():
            return _plain(value.model_dump())
        case Path():
            return str(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
