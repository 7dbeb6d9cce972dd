"""`nextstate`: every component and the one-machine stack, from a terminal."""

from gateway.cli.commands import main

__all__ = ["main"]
