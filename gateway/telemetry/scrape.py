"""Metrics of a process that serves nothing else, for Prometheus to fetch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from gateway.errors import ConfigError


@contextmanager
def served(
    registry: CollectorRegistry, host: str, port: int, setting: str = "metrics_port"
) -> Iterator[int]:
    """`/metrics` of a registry while the context is open; the port, any where 0 was asked for.

    Raises ConfigError, naming the `setting`, where the port cannot be had.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"{setting} {port}: {error.strerror}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        _join(thread)


def _join(thread: threading.Thread) -> None:
    thread.join(timeout=5)
