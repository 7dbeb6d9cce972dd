"""The deployment's files, read as their tools read them: no Docker is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")


@dataclass
class Stage:
    """One `FROM … AS name` and the instructions below it, each one line."""

    name: str
    parent: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.lines if name == instruction]


def dockerfile() -> dict[str, Stage]:
    """The stages by name, in order; build arguments before the first are put in their places."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            for argument, value in arguments.items():
                image = image.replace(f"${{{argument}}}", value)
            stages[name] = Stage(name, image)
        elif stages:
            next(reversed(stages.values())).lines.append((instruction, rest.strip()))
        else:
            assert instruction == "ARG"
            name, _, value = rest.partition("=")
            arguments[name] = value
    return stages


def lineage(name: str) -> Iterator[Stage]:
    """A stage and those that it is built on, itself first."""
    stages = dockerfile()
    while name in stages:
        yield stages[name]
        name = stages[name].parent


def compose(**variables: str) -> dict[str, Any]:
    """The compose file with its variables put in. Raises KeyError for one that is required."""

    def value(match: re.Match[str]) -> str:
        name, how, default = match.groups()
        if name in variables:
            return variables[name]
        if how == ":-":
            return str(default)
        raise KeyError(name)

    text = (ROOT / "docker-compose.yml").read_text()
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(value, body))
    return found
