"""Refuses, and notes, whatever a process sends to another host: put this folder first on the path.

Python's own sockets are watched by an audit hook, connections that uvloop makes in C by a loop of
ours. Each line of the file that `NETWORK_GUARD` names is an attempt, after a first one that says
that a process is watched.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Any

_WATCHED = {
    "socket.connect",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.gethostbyaddr",
}


def _note(line: str) -> None:
    with open(os.environ["NETWORK_GUARD"], "a", encoding="utf-8") as file:  # noqa: PTH123 - few imports
        file.write(f"{os.getpid()} {line}\n")


def _is_here(host: object) -> bool:
    """This host, or no host at all: a path, or what is listened at."""
    if isinstance(host, bytes):
        host = host.decode()
    if host is None or not isinstance(host, str) or host in ("", "localhost") or "/" in host:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _check(what: str, host: object) -> None:
    if not _is_here(host):
        _note(f"{what} {host}")
        raise PermissionError(f"{what} of {host}: nothing leaves this host")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    # Sockets come with (self, address), look-ups with the host first.
    place = arguments[1] if event.startswith(("socket.connect", "socket.send")) else arguments[0]
    _check(event, place[0] if isinstance(place, tuple) else place)


if "NETWORK_GUARD" in os.environ:
    import uvloop

    class Guarded(uvloop.Loop):
        async def create_connection(
            self, factory: Any, host: Any = None, *more: Any, **named: Any
        ) -> Any:
            _check("create_connection", host)
            return await super().create_connection(factory, host, *more, **named)

        async def getaddrinfo(self, host: Any, *more: Any, **named: Any) -> Any:
            _check("getaddrinfo", host)
            return await super().getaddrinfo(host, *more, **named)

        async def create_datagram_endpoint(self, *given: Any, **named: Any) -> Any:
            address = named.get("remote_addr") or (given[2] if len(given) > 2 else None)
            _check("datagram", address and address[0])
            return await super().create_datagram_endpoint(*given, **named)

    uvloop.new_event_loop = Guarded
    sys.addaudithook(_audit)
    _note("watched")
