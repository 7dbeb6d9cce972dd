"""What the commands share: settings, progress, and the last word on errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from gateway.config import load

if TYPE_CHECKING:
    from gateway.local.config import LocalSettings
    from gateway.local.environments import Say


def local_settings() -> LocalSettings:
    from gateway.local.config import LocalSettings

    return load(LocalSettings)


@contextmanager
def progress() -> Iterator[Say]:
    """Steps on standard error: a line that changes on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield say
        return
    with console.status("starting") as status:
        yield lambda step: status.update(Text(step))


def say(line: str) -> None:
    typer.echo(f"nextstate: {line}", err=True)


def fail(message: str) -> NoReturn:
    first, *rest = message.splitlines() or ["failed"]
    console = Console(stderr=True)
    console.print(Text(f"nextstate: {first}", style="red"), soft_wrap=True)
    for line in rest:
        console.print(Text(line, style="dim"), soft_wrap=True)
    sys.exit(1)
