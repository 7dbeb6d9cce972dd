"""What the commands share: settings, progress, and the last word on errors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import structlog
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


def logs_aside() -> None:
    """Warnings to standard error, so that standard output is the answer alone.

    Commands that run a component set up their own logging over this.
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Whatever stream is there when something is said.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.stdlib.add_log_level,
            # Plain ones: those of the library show local variables, keys among them.
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ],
    )


def say(line: str) -> None:
    typer.echo(f"nextstate: {line}", err=True)


def fail(message: str) -> NoReturn:
    first, *rest = message.splitlines() or ["failed"]
    console = Console(stderr=True)
    console.print(Text(f"nextstate: {first}", style="red"), soft_wrap=True)
    for line in rest:
        console.print(Text(line, style="dim"), soft_wrap=True)
    sys.exit(1)
