"""Scenes on the dashboard, played in a headless browser that needs none on the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.local.cache import cache_dir, exclusive
from tests.clients import npm_client, run_node
from tests.running import Gateway

#: Has the package bring the system libraries that a small machine lacks.
LIBRARIES = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}


@pytest.fixture(scope="session")
async def modules() -> Path:
    return await asyncio.to_thread(npm_client, "browser")


@pytest.fixture(scope="session")
async def browser(modules: Path) -> Path:
    """The browser of the package, unpacked once; its libraries and fonts lie beside it."""
    home = modules.parent / "browser"
    busy = f"another process has been unpacking {home} for long"
    with exclusive(
        cache_dir() / "locks" / f"{modules.parent.name}-browser.lock", wait_s=300, busy=busy
    ):
        home.mkdir(exist_ok=True)
        return Path(await run_node(modules, "browser_path.mjs", TMPDIR=str(home), **LIBRARIES))


class Stage:
    """Scenes on the dashboard of one gateway."""

    def __init__(self, gateway: Gateway, modules: Path, browser: Path, home: Path) -> None:
        self.gateway, self.modules, self.browser, self.home = gateway, modules, browser, home

    def _fonts(self) -> Path:
        """The package's own fonts; its configuration looks for them in /tmp alone."""
        written = self.home / "fonts.conf"
        written.write_text(
            f"<fontconfig><dir>{self.browser.parent / 'fonts'}</dir>"
            f"<cachedir>{self.home / 'fonts'}</cachedir></fontconfig>"
        )
        return written

    async def play(self, scene: str, *, admin: str | None = None, **environ: str) -> Any:
        keys = self.gateway.keys
        return await run_node(
            self.modules,
            "dashboard.mjs",
            scene,
            BROWSER=str(self.browser),
            GATEWAY=self.gateway.url,
            ADMIN=admin or keys.admin,
            AGENT=keys.agent,
            TMPDIR=str(self.home),
            HOME=str(self.home),
            LD_LIBRARY_PATH=str(self.browser.parent / "al2023" / "lib"),
            FONTCONFIG_FILE=str(self._fonts()),
            LANG="en_GB.UTF-8",
            **environ,
        )


@pytest.fixture
async def stage(gateway: Gateway, modules: Path, browser: Path, tmp_path: Path) -> Stage:
    return Stage(gateway, modules, browser, tmp_path)


def grave(violations: list[str]) -> list[str]:
    """What axe-core finds that keeps somebody out."""
    return [one for one in violations if one.startswith(("serious", "critical"))]
