"""Structured logs; what is counted while serving is in `metrics`, apart, for what it loads."""

from gateway.telemetry.context import bind, own_context, request_context
from gateway.telemetry.logs import configure_logging, dropped_lines, get_logger

__all__ = [
    "bind",
    "configure_logging",
    "dropped_lines",
    "get_logger",
    "own_context",
    "request_context",
]
