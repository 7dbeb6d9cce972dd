"""structlog set up once a process: JSON lines, or a console form on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from gateway.config import LogSettings

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logging(settings: LogSettings, component: str, stream: TextIO | None = None) -> None:
    """Send every event of this process, and the standard library's, to `stream` (stdout).

    `component` (gateway, judge, trainer, …) is on every line. Context variables bound with
    `structlog.contextvars` (request, session, turn, policy version) are merged in.
    """
    out = stream or sys.stdout
    json = settings.format == "json" or (settings.format == "auto" and not out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    )
    level = _LEVELS[settings.level]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    # Its access lines repeat what `served` says, without the ids.
    logging.getLogger("uvicorn.access").disabled = True
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(component=component)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events carry `logger=name`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger
