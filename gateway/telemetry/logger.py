"""What modules log with: structlog's loggers, without its proxy and the steps between."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from gateway.telemetry.sink import Sinks


class Logger:
    """Makes a bound logger for each event, as structlog is configured then: none outlives that."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _bound(self) -> Any:
        how = structlog.get_config()
        logger, context = how["logger_factory"](self._name), how["context_class"]()
        return how["wrapper_class"](logger, how["processors"], context)

    # What is called most is found without the error that leads to `__getattr__`.
    debug = property(lambda self: self._bound().debug)
    info = property(lambda self: self._bound().info)
    warning = property(lambda self: self._bound().warning)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._bound(), method)


def bound_loggers(level: int, sink: Sinks) -> type[FilteringBoundLogger]:
    """Loggers that leave out what is below `level`; the last processor's lines go to `sink`."""

    class BoundLogger(structlog.make_filtering_bound_logger(level)):  # type: ignore[misc]
        def _proxy_to_logger(
            self, method_name: str, event: str | None = None, **values: Any
        ) -> None:
            line: Any = {**self._context, **values, "event": event}
            try:
                for process in self._processors:
                    line = process(self._logger, method_name, line)
            except structlog.DropEvent:
                return
            sink.put(line)

    return BoundLogger
