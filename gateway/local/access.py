"""Reaching the database and the engines of a stack from another process."""

from __future__ import annotations

import os

from gateway.config import EngineSettings
from gateway.errors import StackError
from gateway.local.config import LocalSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.local.state import running


def database_url(settings: LocalSettings) -> str:
    """The configured database, else that of the stack that runs here.

    Raises StackError where there is neither.
    """
    if settings.database.url is not None or os.environ.get("DATABASE_URL"):
        return settings.database_url
    if running(settings.home) is None:
        raise StackError(
            f"no database: no stack runs in {settings.home}, and DATABASE_URL is not set"
        )
    return EmbeddedPostgres(settings.home / "postgres").url


def with_engines(settings: LocalSettings) -> LocalSettings:
    """With the engines of the stack that runs here, where none are configured."""
    stack = running(settings.home) if settings.own_engine else None
    if stack is None or not stack.engines:
        return settings
    engines = (EngineSettings(name=f"sglang-{at}", url=url) for at, url in enumerate(stack.engines))
    return settings.model_copy(update={"engines": tuple(engines)})
