"""The server's only wiring."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
import uvloop
from fastapi import FastAPI

from gateway.api import admin, completions, errors, feedback, health, inference, responses
from gateway.api.services import Services
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.telemetry import configure_logging, get_logger

log = get_logger(__name__)


def create_app(services: Services) -> FastAPI:
    """The ASGI application over open services."""
    app = FastAPI(
        title="Nextstate", docs_url=None, redoc_url=None, openapi_url="/admin/v1/openapi.json"
    )
    errors.install(app)
    app.router.routes.extend(inference.routes(services))
    app.router.routes.extend(completions.routes(services))
    app.router.routes.extend(responses.routes(services))
    app.include_router(feedback.routes(services))
    app.include_router(health.routes(services))
    app.include_router(admin.routes(services))
    return app


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are finished within the grace.

    Raises ConfigError for a port in use, and what `Services.open` raises.
    """
    configure_logging(settings.log, "gateway")
    listener = _bind(settings.gateway.host, settings.gateway.port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as run:
        run.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    services = await Services.open(settings)
    try:
        config = uvicorn.Config(
            create_app(services),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=round(settings.gateway.shutdown_grace_s),
        )
        host, port = listener.getsockname()[:2]
        log.info("listening", host=host, port=port, model=settings.model.name)
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        await services.close()


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
