"""structlog set up once a process: JSON lines, or a console form on a terminal."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from gateway.config import LogSettings
from gateway.telemetry.context import carried
from gateway.telemetry.files import RotatingFile
from gateway.telemetry.logger import Logger, bound_loggers
from gateway.telemetry.sampling import Sampling
from gateway.telemetry.sink import LineSink, Sinks

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

#: Shown instead of sent, where a terminal would obey them.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
#: Values of several lines that are made here.
_OURS = frozenset({"exception", "stack"})

#: An event with all that goes with it, to a line.
Render = Callable[[EventDict], bytes]

_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Whole:
    """The only processor: an event with what goes with it, in one step.

    An event's own values win. Level, logger and traceback are as structlog's would be; the time is
    in seconds, until it is written.
    """

    def __init__(self, component: str, sampling: Sampling | None) -> None:
        self._component, self._sampling = component, sampling

    def __call__(self, logger: str, method: str, event: EventDict) -> EventDict:
        """Raises DropEvent."""
        held = carried()
        if held is not None:
            event = {**held, **event}
        if self._sampling is not None:
            event = self._sampling(logger, method, event)
        event.setdefault("component", self._component)
        event["logger"], event["level"] = logger, method
        event["timestamp"] = time.time()
        if "exc_info" in event:
            event = structlog.processors.format_exc_info(logger, method, event)
        return event


class _StandardLibrary(logging.Handler):
    """Records of other libraries, through the same processors to the same sink."""

    def __init__(self, processors: list[Processor], sink: Sinks) -> None:
        super().__init__()
        self._processors = processors
        self.sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Any = {"event": record.getMessage()}
            if record.exc_info:
                event["exc_info"] = record.exc_info
            for process in self._processors:
                event = process(record.name, record.levelname.lower(), event)
            self.sink.put(event)
        except structlog.DropEvent:
            return
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def close(self) -> None:
        """Also called when the process ends."""
        self.sink.close()
        super().close()


def configure_logging(settings: LogSettings, component: str, stream: TextIO | None = None) -> None:
    """Send every event of this process, and the standard library's, to `stream` (stdout).

    With `log.file` also to files, which hold JSON unless the format is `console`. Raises
    ConfigError where they cannot be written.

    A thread writes them: whoever logs never waits, and `dropped_lines` counts what found no room.
    `component` (gateway, judge, trainer, …) is on every line, and what `request_context` and `bind`
    hold (request, session, turn, policy version) on those of a request.
    """
    out = stream or sys.stdout
    for_people = out.isatty() and settings.file is None
    as_json = settings.format == "json" or (settings.format == "auto" and not for_people)
    render: Render = _json if as_json else _Console()
    sampling = Sampling(settings.sample) if settings.sample else None
    processors: list[Processor] = [_Whole(component, sampling)]
    level = _LEVELS[settings.level]

    def told(count: int) -> bytes:
        event: EventDict = {"event": "log_lines_dropped", "count": count}
        event.update(component=component, level="warning", logger=__name__, timestamp=time.time())
        return render(event)

    root = logging.getLogger()
    for earlier in root.handlers:
        if isinstance(earlier, _StandardLibrary):
            earlier.close()
    file = RotatingFile(settings.file, component) if settings.file else None
    streams = (out, file) if file else (out,)
    sink = Sinks([LineSink(one, told, render=render) for one in streams], owned=file)
    structlog.configure(
        processors=processors,
        wrapper_class=bound_loggers(level, sink),
        # What is wrapped is the name alone.
        logger_factory=str,
        # A logger is made anew for each event, which costs little, so that none outlives this.
        cache_logger_on_first_use=False,
    )
    root.handlers[:] = [_StandardLibrary(processors, sink)]
    root.setLevel(max(level, logging.INFO))
    # Its access lines repeat what `served` says, without the ids.
    logging.getLogger("uvicorn.access").disabled = True


def dropped_lines() -> int:
    """How many lines of this process's log were lost, since it was configured last."""
    handlers = logging.getLogger().handlers
    return sum(each.sink.dropped for each in handlers if isinstance(each, _StandardLibrary))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events carry `logger=name`."""
    return cast("structlog.stdlib.BoundLogger", Logger(name))


def _stamped(event: EventDict) -> EventDict:
    """With its time as it is written; another sink may have the event, too."""
    at = datetime.fromtimestamp(event["timestamp"], UTC)
    return {**event, "timestamp": f"{at.isoformat()[:-6]}Z"}


def _json(event: EventDict) -> bytes:
    event = _stamped(event)
    try:
        return _encode(event) + b"\n"
    except (TypeError, ValueError, RecursionError, OverflowError):
        # Half a surrogate pair, say; nothing that is logged may fail for it.
        return json.dumps(event, default=str, skipkeys=True).encode() + b"\n"


class _Console:
    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer()

    def __call__(self, event: EventDict) -> bytes:
        event = _stamped(event)
        for name, value in event.items():
            if isinstance(value, str) and name not in _OURS:
                event[name] = value.translate(_CONTROLS)
        # Of its first two arguments it uses neither.
        line = self._render(None, "", event)
        return f"{line}\n".encode("utf-8", "backslashreplace")
