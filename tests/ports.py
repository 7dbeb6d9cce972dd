"""Ports that nobody takes between the choice and the use."""

from __future__ import annotations

import socket
from itertools import count
from pathlib import Path

_FIRST, _BLOCK = 10_000, 500
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LAST_RESORT = 32_768


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, never the same again in this process.

    It is of a block that no other process of tests chooses from, below those that the kernel
    gives to connections and to listeners without a number.
    """
    while True:
        port = _block.first + next(_block.numbers) % _BLOCK
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class _Block:
    """Held by a name in the kernel, which goes with this process and leaves no file."""

    def __init__(self) -> None:
        self.numbers = count()
        end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _LAST_RESORT
        for first in range(_FIRST, end - _BLOCK, _BLOCK):
            self._hold = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._hold.bind(f"\0nextstate-tests-{first}")
            except OSError:
                self._hold.close()
            else:
                self.first = first
                return
        raise RuntimeError("every block of ports is held")


_block = _Block()
