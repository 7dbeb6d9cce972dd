"""structlog set up once a process: JSON lines, or a console form on a terminal."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from gateway.config import LogSettings
from gateway.telemetry.context import merge_request
from gateway.telemetry.files import RotatingFile
from gateway.telemetry.sampling import Sampling
from gateway.telemetry.sink import LineSink, Sinks

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

#: Shown instead of sent, where a terminal would obey them.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
#: Values of several lines that are made here.
_OURS = frozenset({"exception", "stack"})

#: Methods that are not named as their level is.
_SAME_LEVEL = {"warn": "warning", "exception": "error"}

_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Lines:
    """The end of a logger's chain: what was rendered goes to the sink."""

    __slots__ = ("_sink", "name")

    def __init__(self, sink: Sinks, name: str) -> None:
        self._sink = sink
        self.name = name

    def msg(self, line: bytes) -> None:
        self._sink.put(line)

    debug = info = warning = error = critical = msg


class _StandardLibrary(logging.Handler):
    """Records of other libraries, through the same processors to the same sink."""

    def __init__(self, processors: list[Processor], sink: Sinks) -> None:
        super().__init__()
        self._processors = processors
        self.sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Any = {"event": record.getMessage(), "_record": record}
            if record.exc_info:
                event["exc_info"] = record.exc_info
            for process in self._processors:
                event = process(None, record.levelname.lower(), event)
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
    `component` (gateway, judge, trainer, …) is on every line. What `request_context` and `bind`
    (request, session, turn, policy version) or `structlog.contextvars` hold is merged in.
    """
    out = stream or sys.stdout
    for_people = out.isatty() and settings.file is None
    as_json = settings.format == "json" or (settings.format == "auto" and not for_people)
    render = _json if as_json else _Console()
    processors: list[Processor] = [
        merge_request,
        *([Sampling(settings.sample)] if settings.sample else []),
        structlog.contextvars.merge_contextvars,
        _complete,
        render,
    ]
    level = _LEVELS[settings.level]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)

    def told(count: int) -> bytes:
        event: EventDict = {"event": "log_lines_dropped", "count": count}
        event.update(component=component, level="warning", logger=__name__)
        return render(None, "warning", stamp(None, "warning", event))

    root = logging.getLogger()
    for earlier in root.handlers:
        if isinstance(earlier, _StandardLibrary):
            earlier.close()
    file = RotatingFile(settings.file, component) if settings.file else None
    sink = Sinks((LineSink(out, told), *((LineSink(file, told),) if file else ())), owned=file)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda name="": _Lines(sink, name),
        # A logger is made anew for each event, which costs little, so that none outlives this.
        cache_logger_on_first_use=False,
    )
    root.handlers[:] = [_StandardLibrary(processors, sink)]
    root.setLevel(max(level, logging.INFO))
    # Its access lines repeat what `served` says, without the ids.
    logging.getLogger("uvicorn.access").disabled = True
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(component=component)


def _complete(logger: Any, method: str, event: EventDict) -> EventDict:
    """Level, logger, time and traceback: as structlog's own processors, in one step."""
    record = event.get("_record")
    event["logger"] = logger.name if record is None else record.name
    event["level"] = _SAME_LEVEL.get(method, method)
    event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return (
        structlog.processors.format_exc_info(logger, method, event)
        if "exc_info" in event
        else event
    )


def dropped_lines() -> int:
    """How many lines of this process's log were lost, since it was configured last."""
    handlers = logging.getLogger().handlers
    return sum(each.sink.dropped for each in handlers if isinstance(each, _StandardLibrary))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events carry `logger=name`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


def _json(_logger: Any, _method: str, event: EventDict) -> bytes:
    event.pop("_record", None)
    try:
        return _encode(event) + b"\n"
    except (TypeError, ValueError, RecursionError, OverflowError):
        # Half a surrogate pair, say; nothing that is logged may fail for it.
        return json.dumps(event, default=str, skipkeys=True).encode() + b"\n"


class _Console:
    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer()

    def __call__(self, logger: Any, method: str, event: EventDict) -> bytes:
        event.pop("_record", None)
        for name, value in event.items():
            if isinstance(value, str) and name not in _OURS:
                event[name] = value.translate(_CONTROLS)
        line = self._render(logger, method, event)
        return f"{line}\n".encode("utf-8", "backslashreplace")
