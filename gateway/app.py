"""The server's only wiring."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import (
    admin,
    admin_actions,
    admin_engines,
    admin_keys,
    admin_learning,
    admin_pauses,
    admin_privacy,
    admin_rules,
    admin_tenants,
    admin_transfer,
    admin_turns,
    completions,
    dashboard,
    errors,
    feedback,
    health,
    inference,
    metrics,
    openapi,
    policies,
    responses,
)
from gateway.api.body_limit import bounded
from gateway.api.endpoint import Endpoint
from gateway.api.protocol import BoundedHttp
from gateway.api.server import Server
from gateway.api.services import Services
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.telemetry import configure_logging, get_logger

log = get_logger(__name__)


class App(FastAPI):
    """FastAPI, but that requests for inference go straight to their endpoint.

    They answer their own errors and use none of what stands between, which would cost more than
    they do themselves.
    """

    def go_straight(self) -> None:
        """Note the endpoints that have one path and take POST, once all routes are there."""
        self.straight: dict[tuple[bytes, bytes], ASGIApp] = {
            (method.encode(), route.path.encode()): route.app
            for route in self.router.routes
            if isinstance(route, Route) and isinstance(route.endpoint, Endpoint)
            for method in route.methods or ()
            if method == "POST" and "{" not in route.path
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            endpoint = self.straight.get((scope["method"].encode(), scope["path"].encode()))
            if endpoint is not None:
                await endpoint({**scope, "path_params": {}}, receive, send)
                return
        if scope["type"] == "http":
            receive = bounded(scope, receive)
        await super().__call__(scope, receive, send)


def create_app(services: Services) -> FastAPI:
    """The ASGI application over open services."""
    app = App(
        title="Nextstate", docs_url=None, redoc_url=None, openapi_url="/admin/v1/openapi.json"
    )
    errors.install(app)
    app.router.routes.extend(inference.routes(services))
    app.router.routes.extend(completions.routes(services))
    app.router.routes.extend(responses.routes(services))
    app.include_router(feedback.routes(services))
    app.include_router(health.routes(services))
    app.include_router(metrics.routes(services))
    app.include_router(admin.routes(services))
    app.include_router(admin_turns.routes(services))
    app.include_router(admin_learning.routes(services))
    app.include_router(policies.routes(services))
    app.include_router(admin_keys.routes(services))
    app.include_router(admin_tenants.routes(services))
    app.include_router(admin_rules.routes(services))
    app.include_router(admin_pauses.routes(services))
    app.include_router(admin_engines.routes(services))
    app.include_router(admin_actions.routes(services))
    app.include_router(admin_transfer.routes(services))
    app.include_router(admin_privacy.routes(services))
    app.include_router(dashboard.routes())
    app.go_straight()
    openapi.install(app)
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
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, services.rules.reload)
    try:
        config = uvicorn.Config(
            create_app(services),
            http=BoundedHttp,
            lifespan="off",
            log_config=None,
            access_log=False,
            # Who is asking is told by a key alone.
            proxy_headers=False,
            timeout_graceful_shutdown=round(settings.gateway.shutdown_grace_s),
        )
        _steady()
        host, port = listener.getsockname()[:2]
        log.info("listening", host=host, port=port, model=settings.model.name)
        server = Server(
            config, drain_s=settings.gateway.drain_s, draining=services.stop_being_ready
        )
        await server.serve(sockets=[listener])
    finally:
        await services.close()


def _steady() -> None:
    """Collect garbage less often: requests make few cycles, and what is open now never is any."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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
