"""The settings in force: each value, where it comes from, and what is wrong with any."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import SettingsError

from gateway.classify import Awareness
from gateway.config import SECTIONS, config_file
from gateway.errors import ConfigError
from gateway.local.config import LocalSettings
from gateway.secret_files import names_file

MASK = "********"

#: Variables that are read apart from the sections.
OTHER_VARIABLES = frozenset(
    {
        "NEXTSTATE_CONFIG",
        "NEXTSTATE_CACHE",
        "NEXTSTATE_DEVICE",
        "NEXTSTATE_ENGINE_PYTHON",
        "NEXTSTATE_ADMIN_KEY",
        "NEXTSTATE_ADMIN_KEY_FILE",
    }
)

#: Names of strings that are secrets wherever they stand: headers, settings of plug-ins.
_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|key|token|secret|password|authorization|cookie)$", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One value. `source` is `default`, a variable's name, or the path of the settings file."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one setting, variable or file."""

    setting: str
    problem: str


def effective(settings: LocalSettings) -> list[Setting]:
    """Every setting in the order of the sections, secrets masked. Raises ConfigError."""
    sources = _Sources.read()
    found: list[Setting] = []
    for section in SECTIONS:
        for names, value in _leaves(getattr(settings, section), (section,)):
            found.append(Setting(_dotted(names), value, sources.of(names)))
    return found


def problems() -> list[Problem]:
    """Every setting that is wrong, none where all are right."""
    found = [*_variables()]
    try:
        content = _file_content()
    except ConfigError as error:
        return [*found, Problem("settings file", error.message)]
    found += [
        Problem(name, "there is no such section") for name in sorted(set(content) - {*SECTIONS})
    ]
    try:
        settings = LocalSettings()
    except ValidationError as error:
        return [*found, *(Problem(_dotted(item["loc"]), item["msg"]) for item in error.errors())]
    except SettingsError as error:
        return [*found, Problem("environment", str(error))]
    except ConfigError as error:
        return [*found, Problem("environment", error.message)]
    return [*found, *_together(settings)]


def masked(name: str, value: Any) -> Any:
    """A value as it may be shown: no secret, no password of a URL."""
    match value:
        case SecretStr():
            return MASK if value.get_secret_value() else ""
        case BaseModel():
            return {key: masked(key, getattr(value, key)) for key in type(value).model_fields}
        case dict():
            return {str(key): masked(str(key), item) for key, item in value.items()}
        case list() | tuple():
            return [masked(name, item) for item in value]
        case Path():
            return str(value)
        case str():
            return MASK if _SECRET_NAME.search(name) else _IN_URL.sub(rf"\1:{MASK}", value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class _Sources:
    variables: Mapping[str, str]
    file: Path | None
    content: Mapping[str, Any]

    @classmethod
    def read(cls) -> _Sources:
        variables = {name.lower(): name for name in os.environ}
        return cls(variables, config_file(), _file_content())

    def of(self, names: Names) -> str:
        """The variable or file that gives a setting; the nearest variable wins."""
        for depth in range(len(names), 0, -1):
            variable = self._variable(names[:depth])
            if variable is not None and (depth == len(names) or _holds(variable, names[depth:])):
                return variable
        if (
            names == ("database", "url")
            and "DATABASE_URL" in os.environ
            and not self._in_file(names)
        ):
            return "DATABASE_URL"
        return str(self.file) if self._in_file(names) else "default"

    def _variable(self, names: Names) -> str | None:
        plain = "__".join(("nextstate_" + names[0], *names[1:]))
        return self.variables.get(plain) or self.variables.get(plain + "_file")

    def _in_file(self, names: Names) -> bool:
        return self.file is not None and _within(self.content, names)


def _holds(variable: str, rest: Names) -> bool:
    """Whether the JSON of a variable, or of the file that it names, has a value of this name."""
    text = os.environ[variable]
    try:
        if names_file(variable):
            text = Path(text).read_text()
        return _within(json.loads(text), rest)
    except (OSError, ValueError):
        return False


def _within(content: Any, names: Names) -> bool:
    for name in names:
        if isinstance(content, list) and name.isdigit() and int(name) < len(content):
            content = content[int(name)]
        elif isinstance(content, Mapping) and name in content:
            content = content[name]
        elif name == "session_timeout_s" and isinstance(content, Mapping):
            return "session_timeout" in content
        else:
            return False
    return True


def _leaves(value: Any, names: Names) -> Iterator[tuple[Names, Any]]:
    """What has no parts of its own; an entry of `limits.keys` is one value."""
    match value:
        case BaseModel():
            for name in type(value).model_fields:
                yield from _leaves(getattr(value, name), (*names, name))
        case tuple() if value and isinstance(value[0], BaseModel):
            for number, item in enumerate(value):
                yield from _leaves(item, (*names, str(number)))
        case _ if names == ("database", "url") and value is None and "DATABASE_URL" in os.environ:
            yield names, MASK
        case _:
            yield names, masked(names[-1], value)


def _file_content() -> dict[str, Any]:
    """The settings file as it stands. Raises ConfigError where it cannot be read."""
    path = config_file()
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a table of sections")
    return {str(key): value for key, value in content.items()}


def _variables() -> Iterator[Problem]:
    starts = tuple(f"NEXTSTATE_{section.upper()}" for section in SECTIONS)
    for name in sorted(os.environ):
        upper = name.upper()
        if not upper.startswith("NEXTSTATE_") or upper in OTHER_VARIABLES:
            continue
        if not any(upper in (one, f"{one}_FILE") or upper.startswith(f"{one}__") for one in starts):
            yield Problem(name, "no setting has this name, so it does nothing")


def _together(settings: LocalSettings) -> Iterator[Problem]:
    """What is right alone and wrong with the rest or with the disk."""
    if settings.database.url is not None or os.environ.get("DATABASE_URL"):
        try:
            _ = settings.database_url
        except ConfigError as error:
            yield Problem("database.url", error.message)
    try:
        Awareness(settings.session_awareness)
    except ConfigError as error:
        yield Problem("session_awareness", error.message)
    for name, path in (
        ("model.path", settings.model.path),
        ("trainer.model_path", settings.trainer.model_path),
    ):
        if path is not None and not (path / "config.json").is_file():
            yield Problem(name, f"{path} is not a model directory: it has no config.json")
    llm = settings.judge.llm
    if settings.judge.line is not None and "llm" in settings.judge.line and llm is None:
        yield Problem("judge.line", "it names llm, and there is no section judge.llm")


def _dotted(names: tuple[int | str, ...]) -> str:
    return ".".join(map(str, names)) or "settings"
