"""The demo: simulated users, the whole loop, and whether it learned."""

from __future__ import annotations

from pathlib import Path


def run(*, quick: bool = False, out: Path = Path("build/demo")) -> int:
    """Run the demo on a stack of its own in `out` and write the report there.

    The exit status: 0 where the loop did all that it claims, 1 where a claim failed. `quick` only
    checks that the loop closes. Raises NextstateError where the stack cannot run.
    """
    # Only this command needs them: a plotting library takes a second to load.
    from rich.console import Console

    from gateway.demo.command import demo

    return demo(quick=quick, out=out, console=Console())
