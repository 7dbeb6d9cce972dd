"""What the stack needs on disk before it can start, made once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gateway.local.config import LocalSettings
from gateway.local.environments import Say, ensure_engine
from gateway.local.model import ensure_model


def setup(settings: LocalSettings, say: Say) -> None:
    """Build the engine's environment and convert the model, side by side.

    Raises StackError or ConfigError. Quick where both are there.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        building = pool.submit(ensure_engine, say) if settings.own_engine else None
        model = ensure_model(settings.model.path or settings.local.model)
        say(f"the model is in {model}")
        if building is not None:
            building.result()
